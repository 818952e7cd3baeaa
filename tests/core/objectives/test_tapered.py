"""docs/objectives_tapered.md: where the variants of OAPL end, by brute force over a bandit's policies."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from bench.bandit import BEHAVIOR, REWARD, Array
from oapl_core.objectives import Inputs, Method, Oapl, StepSizes
from oapl_core.objectives.oapl_variant import OaplVariant, tapered_values
from oapl_core.objectives.topr import Topr

ARMS = torch.tensor([0] * 3 + [1] * 6 + [2])
"""A group of ten rollouts in the behaviour policy's exact proportions."""
GROUP = torch.zeros(10, dtype=torch.int64)


def lowest(cost: Callable[[Array], float]) -> Array:
    """The policy over three arms of least cost: the best point of a grid, then of ever finer ones around it."""
    best, width, points = np.full(3, 1 / 3), 1.0, 25
    for _ in range(28):
        steps = np.linspace(-width, width, points)
        found = [best + np.array([one, two, -one - two]) for one in steps for two in steps]
        best = min((pi for pi in [best, *found] if (pi >= 0).all()), key=cost)
        width, points = width * 0.6, 9
    return best


def advantage(objective: Method) -> Array:
    """A of each arm."""
    found: Array = objective.advantages(torch.from_numpy(REWARD)[ARMS], GROUP).numpy()[[0, 3, 9]]
    return found


def loss_of(
    objective: Method, behavior: Array = BEHAVIOR, reward: Array = REWARD, arms: torch.Tensor = ARMS
) -> Callable[[Array], float]:
    """The objective's loss by the policy, in expectation over b."""
    advantage_S = objective.advantages(torch.from_numpy(reward)[arms], GROUP)
    mask, sizes = torch.ones(10, 1, dtype=torch.bool), StepSizes(10, 1, 10)

    def cost(pi: Array) -> float:
        log_w = torch.from_numpy(np.log(np.maximum(pi, 1e-300) / behavior))[arms][:, None]
        return float(objective.loss(Inputs(log_w, mask, advantage_S, advantage_S, GROUP, sizes)).value)

    return cost


def divergence(w: Array, margin: float) -> Array:
    """f of the page, f(1) = 0: KL's down to exp(-margin), a parabola below."""
    edge = np.exp(-margin)
    kl, at_edge = (v * np.log(np.maximum(v, 1e-300)) - v + 1 for v in (w, edge))
    below = at_edge + (w**2 - edge**2) / edge / 2 - (1 + margin) * (w - edge)
    return np.where(w >= edge, kl, below)


@pytest.mark.parametrize("margin", [0.0, 0.2])
@pytest.mark.parametrize("beta", [0.05, 0.3, 1.0])
def test_the_regression_ends_at_the_optimum_of_its_divergence(beta: float, margin: float) -> None:
    """max E r - beta D_f, by brute force; the tapered regression with V of the taper; and w by A, in closed form."""
    optimum = lowest(lambda pi: float(beta * BEHAVIOR @ divergence(pi / BEHAVIOR, margin) - pi @ REWARD))
    objective = OaplVariant(
        divergence="tapered",
        taper_margin=margin,
        value="tapered",
        value_temperature=beta,
        regression_temperature=beta,
    )
    a = advantage(objective) / beta
    w = np.where(a >= -margin, np.exp(a), np.exp(-margin) * np.maximum(0, 1 + a + margin))
    assert (w * BEHAVIOR).sum() == pytest.approx(1, abs=1e-12)
    assert optimum == pytest.approx(w * BEHAVIOR, abs=2e-5)
    assert lowest(loss_of(objective)) == pytest.approx(optimum, abs=2e-5)
    if beta == 0.05:
        assert w[0] == 0, "the worst arm's target is below 0, so it ends at 0"
    elif beta == 1.0:
        assert 0 < w[0] < np.exp(-margin), "inside"


def test_kls_own_v_is_that_of_the_paper_with_one_temperature() -> None:
    objective = Oapl(value_temperature=0.3, regression_temperature=0.3)
    optimum = lowest(lambda pi: float(0.3 * BEHAVIOR @ divergence(pi / BEHAVIOR, 700.0) - pi @ REWARD))
    assert optimum == pytest.approx(BEHAVIOR * np.exp(advantage(objective) / 0.3), abs=2e-5)
    assert lowest(loss_of(objective)) == pytest.approx(optimum, abs=2e-5)


def common(found: list[float]) -> float:
    """The one number that all of them are."""
    assert found == pytest.approx([found[0]] * len(found), rel=1e-3)
    return found[0]


FORMS: list[tuple[dict[str, object], float]] = [
    ({}, 0.1),
    ({}, 2.0),
    ({"divergence": "tapered"}, 0.5),
    ({"divergence": "tapered"}, 2.0),
    ({"divergence": "tapered", "taper_margin": 0.2}, 1.0),
    ({"divergence": "tapered", "anchors_good": False}, 0.5),
    ({"divergence": "tapered", "anchors_good": False}, 2.0),
    ({"anchors_good": False}, 0.5),
]


@pytest.mark.parametrize(("settings", "beta"), FORMS)
def test_with_another_v_every_form_has_one_multiplier(settings: dict[str, object], beta: float) -> None:
    """The page's column "end": kappa, which all arms share, for V with beta1 = 1."""
    objective = OaplVariant.model_validate({"regression_temperature": beta, **settings})
    a, pi = advantage(objective), lowest(loss_of(objective))
    w, log_w = pi / BEHAVIOR, np.log(np.maximum(pi, 1e-300) / BEHAVIOR)
    of_anchor = beta * log_w * np.array([1, objective.anchors_good, objective.anchors_good])
    kappa = common(list((a - of_anchor)[1:] / w[1:]))
    if objective.divergence == "kl":
        assert beta * log_w[0] + kappa * w[0] == pytest.approx(a[0], abs=1e-4)
        return
    edge = np.exp(-objective.taper_margin)
    assert 0 <= w[0] < edge
    expected = edge * (1 + objective.taper_margin + (a[0] - edge * kappa) / beta)
    assert w[0] == pytest.approx(max(0.0, expected), abs=1e-4)
    assert (w[0] > 1e-3) == (beta > 0.5), "some of these cases end inside, others at the border"


def test_with_two_temperatures_the_multiplier_is_divided_by_that_of_the_side() -> None:
    objective = OaplVariant(regression_temperature=0.5, divergence="asymmetric", regression_temperature_below=1.5)
    w = lowest(loss_of(objective)) / BEHAVIOR
    temperature = np.where(w >= 1, 0.5, 1.5)
    assert set(temperature) == {0.5, 1.5}
    common(list(temperature * (advantage(objective) - temperature * np.log(w)) / w))


def ends(settings: dict[str, object], behavior: list[float], reward: list[float]) -> tuple[Array, Array]:
    """A and w of three answers at the end of the regression; b is in tenths."""
    objective, b, r = OaplVariant.model_validate(settings), np.array(behavior), np.array(reward)
    arms = torch.repeat_interleave(torch.arange(3), torch.from_numpy(np.round(10 * b)).long())
    own = objective.advantages(torch.from_numpy(r)[arms], GROUP).numpy()
    return np.array([own[arms == arm][0] for arm in range(3)]), lowest(loss_of(objective, b, r, arms)) / b


def test_a_good_answer_that_ends_below_b_keeps_more_with_two_temperatures() -> None:
    case = [0.3, 0.3, 0.4], [0.0, 0.7, 1.0]
    small: dict[str, object] = {"regression_temperature": 1e-3}
    a, kl = ends(small, *case)
    two: dict[str, object] = {**small, "divergence": "asymmetric", "regression_temperature_below": 3e-3}
    _, w = ends(two, *case)
    assert [kl[1], w[1]] == pytest.approx([0.105, 0.319], abs=5e-3)
    # what an anchor of so little temperature leaves of A, over w: one number, as the page says
    common(list((a[1:] - 1e-3 * np.log(kl[1:])) / kl[1:]))
    beta = np.array([3e-3, 1e-3])
    common(list(beta / 1e-3 * (a[1:] - beta * np.log(w[1:])) / w[1:]))


def test_a_bad_answer_that_is_better_than_kappa_ends_above_b_as_with_kl() -> None:
    case = [0.3, 0.4, 0.3], [0.0, 0.999, 1.4906]
    form: dict[str, object] = {"divergence": "tapered", "regression_temperature": 1.0}
    a, w = ends(form, *case)
    kappa = (a[2] - np.log(w[2])) / w[2]
    assert kappa < a[1] < 0
    assert w[1] > 1
    assert np.log(w[1]) + kappa * w[1] == pytest.approx(a[1], abs=1e-3)
    a, w = ends({**form, "value": "tapered"}, *case)
    assert (w[a < 0] < 1).all(), "with the taper's V kappa is 0"


@pytest.mark.parametrize("margin", [0.5, 1.0])
def test_the_target_of_a_bad_answer_below_its_margin_is_the_pages(margin: float) -> None:
    for beta in (0.1, 0.4, 2.0):  # |A| = 0.5: beyond 1 + m, between, above the taper
        form = OaplVariant(divergence="tapered", regression_temperature=beta, taper_margin=margin)
        below = np.exp(-margin) * (1 + margin - 0.5 / beta)
        target = max(below, 0.0) if below < np.exp(-margin) else np.exp(-0.5 / beta)
        if target == 0:
            assert (pushes(form, [[-1.0], [-30.0]]) > 0).all()
        else:
            above, under = pushes(form, [[np.log(target) + 1e-3], [np.log(target) - 1e-3]])[:, 0]
            assert above > 0 > under


@pytest.mark.parametrize(("beta", "is_full"), [(1.0, False), (0.1, True)])
def test_good_answers_alone_leave_the_rest_to_the_bad_until_there_is_none(beta: float, is_full: bool) -> None:
    objective = OaplVariant(regression_temperature=beta, learns_from_bad=False)
    pi, a = lowest(loss_of(objective)), advantage(objective)
    w = pi / BEHAVIOR
    if is_full:
        assert pi[0] == pytest.approx(0, abs=1e-6)
        assert common(list((a[1:] - beta * np.log(w[1:])) / w[1:])) > 0
    else:
        assert w[1:] == pytest.approx(np.exp(a[1:] / beta), abs=1e-4)


@pytest.mark.parametrize(
    "settings",
    [
        {"divergence": "kl"},
        {"divergence": "tapered"},
        {"divergence": "tapered", "taper_margin": 1.0},
        {"divergence": "tapered", "anchors_good": False},
        {"anchors_good": False},
        {"learns_from_bad": False},
        {"learns_from_bad": False, "anchors_good": False},
    ],
)
def test_at_a_small_beta2_every_form_ends_at_good_answers_by_their_advantage(settings: dict[str, object]) -> None:
    objective = OaplVariant.model_validate({"regression_temperature": 1e-3, **settings})
    weight = BEHAVIOR * np.maximum(advantage(objective), 0)
    assert lowest(loss_of(objective)) == pytest.approx(weight / weight.sum(), abs=3e-3)


@pytest.mark.parametrize(
    "settings", [{}, {"divergence": "tapered"}, {"divergence": "tapered", "taper_margin": 0.5}, {"value": "mean"}]
)
def test_at_a_large_beta2_every_anchored_form_is_the_same_and_v_drops_out(settings: dict[str, object]) -> None:
    objective = OaplVariant.model_validate({"regression_temperature": 50.0, **settings})
    w = lowest(loss_of(objective)) / BEHAVIOR
    assert 50 * (w - 1) == pytest.approx(REWARD - BEHAVIOR @ REWARD, abs=0.02)


def test_at_a_large_beta2_without_an_anchor_good_answers_share_what_b_gave_them() -> None:
    objective = OaplVariant(regression_temperature=500.0, anchors_good=False)
    pi, weight = lowest(loss_of(objective)), BEHAVIOR[1:] * advantage(objective)[1:]
    assert pi[0] == pytest.approx(BEHAVIOR[0], abs=2e-3)
    assert pi[1:] / pi[1:].sum() == pytest.approx(weight / weight.sum(), abs=1e-3)


def pushes(objective: Method, per_token: list[list[float]]) -> Array:
    """Derivative of N times the loss by each token's log-prob of bad answers, A = -0.5, all of one length."""
    x = torch.tensor(per_token, dtype=torch.float64, requires_grad=True)
    none = torch.zeros(len(x))
    inputs = Inputs(x, torch.ones_like(x).bool(), none - 0.5, none, none.long(), StepSizes(len(x), 1, 1))
    (objective.loss(inputs).value * len(x)).backward()
    assert x.grad is not None
    found: Array = x.grad.numpy()
    return found


def test_the_coefficient_of_a_bad_answer_is_the_pages() -> None:
    s = np.array([0.7, 0.0, -0.3, -2.0, -20.0])
    found = s
    for beta in (0.1, 2.0):
        found = pushes(OaplVariant(regression_temperature=beta, divergence="tapered"), s[:, None].tolist())[:, 0]
        w = np.exp(s)
        below = 2 * beta * (beta * (w - 1) + 0.5) * w
        assert found == pytest.approx(np.where(s < 0, below, 2 * beta * (beta * s + 0.5)), rel=1e-9)
    # A = -0.5 > -beta2 = -2: its target is w = 3/4. Above it is pushed, below pulled back, and from far away no more
    assert [np.sign(one) for one in found[1:4]] == [1, -1, -1]
    assert 0 > found[4] > -1e-7
    kl = pushes(OaplVariant(regression_temperature=2.0), s[:, None].tolist())[:, 0]
    assert kl[4] < -100, "OAPL pulls harder the farther it is"


def test_a_margin_without_beta2_is_toprs_bound_scaled_to_1_at_b() -> None:
    s = [[0.5], [-0.2], [-0.9], [-3.0]]
    margin = OaplVariant(divergence="tapered", regression_temperature=1e-9, taper_margin=0.5)
    bound = float(np.exp(-0.5))
    expected = 2e-9 / bound * pushes(Topr(largest_ratio=bound), s)
    assert pushes(margin, s) == pytest.approx(expected, rel=1e-6, abs=0)


def test_the_taper_has_no_step_where_it_begins() -> None:
    for settings in ({"taper_margin": 0.7}, {"taper_margin": 0.7, "taper_length_exponent": 0.5}, {"taper_of": "token"}):
        objective = OaplVariant.model_validate({"divergence": "tapered", "regression_temperature": 0.3, **settings})
        edge = -objective.taper_margin / 2
        above, at, below = (pushes(objective, [[edge + d, edge + d]])[0, 0] for d in (1e-7, 0.0, -1e-7))
        assert [above, below] == pytest.approx([at, at], rel=1e-5)


def test_the_pages_weights_by_length_are_the_losss() -> None:
    page = Path("docs/objectives_tapered.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d[\d,]*) \| ([^|]+) \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", page, re.MULTILINE)
    assert [row[0] for row in rows] == ["12", "200", "2,000", "10,000"]
    by_length: list[dict[str, object]] = [{"taper_length_exponent": a} for a in (0.0, 0.5, 1.0)]
    forms: list[dict[str, object]] = [*by_length, {"taper_of": "token"}]
    for length, *said in rows:
        drift = [[-0.05] * int(length.replace(",", ""))]
        for settings, weight in zip(forms, said, strict=True):
            objective = OaplVariant.model_validate(
                {"divergence": "tapered", "regression_temperature": 1e-9, **settings}
            )
            found = pushes(objective, drift)[0, 0] / 1e-9
            assert float(f"{found:.2g}") == pytest.approx(float(weight), abs=1e-99)


def test_v_of_the_taper_goes_from_the_best_reward_to_the_mean() -> None:
    reward_S, group_S = torch.tensor([1.0, 0, 0, 0.25, 0.5, 0.5]), torch.tensor([7, 7, 7, 7, 3, 3])

    def of(temperature: float, margin: float = 0.0) -> list[float]:
        found: list[float] = tapered_values(reward_S, group_S, temperature, margin).tolist()
        return found

    assert of(1e-4) == pytest.approx([1.0] * 4 + [0.5] * 2, abs=1e-3)
    for temperature, margin, near in ((1e9, 0.0, 1e-9), (1e14, 0.0, 1e-12), (1e16, 0.0, 1e-12), (1e16, 0.5, 1e-12)):
        assert of(temperature, margin) == pytest.approx([0.3125] * 4 + [0.5] * 2, abs=near)
    assert of(1e300) == of(float("inf")) == [0.3125] * 4 + [0.5] * 2
    v = of(0.5)[0]
    assert np.exp((1 - v) / 0.5) + sum(1 + (r - v) / 0.5 for r in (0, 0, 0.25)) == pytest.approx(4)
    soft = 0.5 * np.log(np.mean(np.exp(np.array([1, 0, 0, 0.25]) / 0.5)))
    assert 0.3125 < v < soft, "1 + a is below exp(a): bad answers keep less, so good ones get more"
    assert of(0.5, margin=50.0)[0] == pytest.approx(soft), "a taper that never begins is KL"
