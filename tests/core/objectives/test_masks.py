"""Masks on pi/b as an option of any objective: written out token by token, against each peer's form, and refused."""

from dataclasses import replace
from math import exp, log

import numpy as np
import pytest
import torch
from pydantic import TypeAdapter, ValidationError

from oapl_core.errors import ConfigError
from oapl_core.objectives import Inputs, Method, Objective, OwnObjective, StepSizes
from oapl_core.objectives.clipped.grpo import Grpo
from oapl_core.objectives.clipped.rec import RecOneSide
from oapl_core.settings.experiment_file import parse_experiment
from tests.core.objectives.test_family import DEFAULTS, HAND_SCENE, REST, A, B, gradient, kept_part, loss_and_gradient
from tests.core.objectives.transcriptions import Array, Scene, centred, grpo_advantage, scene


def with_masks(name: str, *masks: dict[str, object], **settings: object) -> Method:
    made = TypeAdapter(Objective).validate_python({"name": name, "masks": masks, **settings})
    assert isinstance(made, Method)
    return made


MASKS: dict[str, tuple[dict[str, object], ...]] = {
    "a token's band": ({"low": 0.8, "high": 1.2},),
    "IcePop, without a ratio": ({"low": 0.8, "high": 1.2}, {"low": 0.8, "high": 1.2, "role": "weight"}),
    "DeepSeek-V3.2": ({"of": "mean", "low": 0.95, "answers": "negative"},),
    "token TIS": ({"high": 1.1, "role": "weight"},),
    "sequence TIS": ({"of": "sum", "high": 1.1, "role": "weight"},),
    "sequence MIS": ({"of": "sum", "low": 0.7, "high": 1.3}, {"of": "sum", "high": 1.3, "role": "weight"}),
    "geometric MIS": ({"of": "mean", "low": 0.9, "high": 1.1},),
    "a veto": ({"of": "any", "low": 0.8},),
    "mu-GRPO": ({"of": "suffix", "low": 0.9, "high": 1.3, "answers": "negative"},),
}


def written_out(masks: tuple[dict[str, object], ...], s: Scene, advantage: Array) -> Array:
    """The factor of every token, one after another."""
    factor = np.ones_like(s.x)
    for mask in masks:
        low, high = float(str(mask.get("low", 0))), float(str(mask.get("high", "inf")))
        for i in range(len(s.x)):
            if mask.get("answers") == "negative" and advantage[i] >= 0:
                continue
            own = [t for t in range(s.x.shape[1]) if s.mask[i, t]]
            of_token = {t: exp(s.x[i, t]) for t in own}
            whole = exp(sum(s.x[i, t] for t in own) / (len(own) if mask.get("of") == "mean" else 1))
            is_left = False
            for t in own:
                is_left |= not low <= of_token[t] <= high
                if mask.get("role") == "weight":
                    factor[i, t] *= min(max(whole if mask.get("of") == "sum" else of_token[t], low), high)
                elif mask.get("of") in ("mean", "sum"):
                    factor[i, t] *= low <= whole <= high
                elif mask.get("of") == "any":
                    factor[i, t] *= all(low <= ratio <= high for ratio in of_token.values())
                else:
                    factor[i, t] *= not is_left if mask.get("of") == "suffix" else low <= of_token[t] <= high
    return factor


@pytest.mark.parametrize("name", sorted(DEFAULTS))
def test_gradients_are_the_objectives_own_times_the_factor_of_each_token(name: str) -> None:
    plain = DEFAULTS[name]
    s = kept_part(plain, scene(2, has_turns=True))
    expected, own = loss_and_gradient(plain, s)
    for masks in MASKS.values():
        factor = written_out(masks, s, s.inputs(plain).advantage_S.numpy())
        found, passed = loss_and_gradient(with_masks(name, *masks), s)
        assert found.value.equal(expected.value)
        torch.testing.assert_close(passed, own * torch.from_numpy(factor), rtol=1e-12, atol=1e-15)
        assert found.masked_ST is not None
        assert found.masked_ST.equal(torch.from_numpy((factor == 0) & s.mask))


@pytest.mark.parametrize("masks", MASKS.values(), ids=MASKS)
def test_every_form_tells_tokens_of_the_scene_apart(masks: tuple[dict[str, object], ...]) -> None:
    s = scene(2, has_turns=True)
    factor = written_out(masks, s, s.inputs(Grpo()).advantage_S.numpy())
    assert len(np.unique(factor[s.mask])) > 1


def test_icepop_has_the_ratio_once_as_a_mask_of_cispo_and_as_mask_and_weight_of_reinforce() -> None:
    """M(k) A at pi = pi_old, M(k) = k within the band and 0 outside: of a weight beside a ratio it would be k^2."""
    s = scene(1)
    ratio = np.exp(s.x)
    weight = np.where((ratio >= 0.8) & (ratio <= 1.2), ratio, 0.0) * s.mask
    assert ratio[s.mask].max() < 5, "below the bound of cispo"
    held = -weight * grpo_advantage(s)[:, None] / s.mask.sum()
    found = gradient(with_masks("cispo", {"low": 0.8, "high": 1.2}), s)
    torch.testing.assert_close(found, torch.from_numpy(held), rtol=1e-12, atol=1e-15)
    without = -weight * centred(s)[:, None] / len(s.x)
    found = gradient(with_masks("reinforce", *MASKS["IcePop, without a ratio"]), s)
    torch.testing.assert_close(found, torch.from_numpy(without), rtol=1e-12, atol=1e-15)
    squared = gradient(with_masks("cispo", *MASKS["IcePop, without a ratio"]), s)
    torch.testing.assert_close(squared, torch.from_numpy(held * ratio), rtol=1e-12, atol=1e-15)


def test_a_group_by_hand() -> None:
    """Ratios of the correct answer's tokens 1.105 and 1.350, of the first wrong one's .705 and .951."""
    icepop = with_masks("grpo", {"low": 0.8, "high": 1.2})
    expected = [-A * exp(0.1) / 4, 0.0, 0.0, -B * exp(-0.05) / 4]
    assert gradient(icepop, HAND_SCENE)[:2].flatten().tolist() == pytest.approx(expected)
    # its mean log-ratio is -.2, the correct answer's .2: only the wrong one is left out
    deepseek = with_masks("reinforce", {"of": "mean", "low": exp(-0.1), "answers": "negative"})
    assert gradient(deepseek, HAND_SCENE)[:2].flatten().tolist() == pytest.approx([-0.1875] * 2 + [0.0] * 2)
    veto = with_masks("reinforce", {"of": "suffix", "high": exp(0.2)})
    assert gradient(veto, HAND_SCENE)[:2].flatten().tolist() == pytest.approx([-0.1875, 0.0] + [0.0625] * 2)


def test_wide_grpo_with_a_veto_is_what_it_was_up_to_the_trigger() -> None:
    wide = RecOneSide(clip_low=0.6, clip_high=2.0)
    vetoed = with_masks("rec_one_side", *MASKS["mu-GRPO"], clip_low=0.6, clip_high=2.0)
    s = scene(5)
    own, found = gradient(wide, s), gradient(vetoed, s)
    same = found == own
    negative = torch.from_numpy(s.inputs(wide).advantage_S.numpy() < 0)
    assert same[~negative].all()
    assert not same[negative].all()
    # once vetoed, always vetoed
    gone = ((own != 0) & (found == 0)).int()
    assert ((own != 0) & (found != 0) & (gone.cummax(1).values == 1)).sum() == 0


def test_bands_hold_their_bounds_and_enormous_ratios() -> None:
    s = scene(3)
    s = replace(s, x=np.where(s.mask, log(1.25), 0.0))
    assert gradient(with_masks("reinforce", {"low": 1.25 - 1e-9, "high": 1.25 + 1e-9}), s).any()
    assert not gradient(with_masks("reinforce", {"high": 1.2499}), s).any()
    far = replace(s, x=np.where(s.mask, 900.0, 0.0))
    for role, found in (("mask", 0.0), ("weight", 3.0)):
        passed = gradient(with_masks("reinforce", {"of": "sum", "high": 3.0, "role": role}), far)
        torch.testing.assert_close(passed, found * gradient(DEFAULTS["reinforce"], far))


def test_a_weight_without_a_bound_is_one_that_float32_holds() -> None:
    mask, none = torch.ones(2, 4, dtype=torch.bool), torch.zeros(2)
    far = torch.full((2, 4), 25.0, requires_grad=True)
    inputs = Inputs(far, mask, torch.tensor([1.0, -1.0]).double(), none, none.long(), StepSizes(2, 1, 8))
    weight: dict[str, object] = {"of": "sum", "role": "weight"}
    for masks in ((weight,), (weight, weight)):
        loss = with_masks("reinforce", *masks).loss(inputs).value
        (found,) = torch.autograd.grad(loss, far)
        assert found.dtype == torch.float32
        assert loss.isfinite()
        assert found[:, 0].tolist() == pytest.approx([-exp(80.0) / 2, exp(80.0) / 2])


@pytest.mark.parametrize(
    ("masks", "said"),
    [
        ([], r"`objective.masks`: List should have at least 1 item"),
        ([{}], r"`objective.masks.0`: no ratio is outside of this band: set low, high or both"),
        ([{"low": 2.0, "high": 1.0}], r"`objective.masks.0`: the band ends at 1, below its beginning 2"),
        ([{"of": "any", "low": 0.1, "role": "weight"}], r"of = 'any' has no ratio of its own to weigh by"),
        ([{"of": "tokens", "low": 0.1}], r"`objective.masks.0.of`: Input should be 'token', 'suffix', "),
        ([{"lows": 0.1}], r"unknown key `objective.masks.0.lows`"),
    ],
)
def test_a_wrong_mask_is_one_line(masks: list[dict[str, object]], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as raised:
        parse_experiment({**REST, "objective": {"name": "grpo", "masks": masks}}, "x.toml")
    assert "\n" not in str(raised.value)


def test_settings_survive_json_and_are_part_of_what_a_checkpoint_depends_on() -> None:
    masked = with_masks("grpo", {"low": 0.5})
    assert TypeAdapter(Objective).validate_json(masked.model_dump_json()) == masked != Grpo()
    assert masked.slice["masks"] == [{"of": "token", "low": 0.5, "high": None, "answers": "all", "role": "mask"}]
    assert "masks" not in Grpo().slice
    with pytest.raises(ValidationError, match="masks"):
        Grpo.model_validate({"masks": [{"low": 0.5}]})


def test_an_objective_of_ones_own_has_them_too(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"name": "oapl_core.objectives.reinforce:Reinforce", "masks": [{"of": "any", "low": 0.8}]}
    own = TypeAdapter(Objective).validate_python(given)
    assert isinstance(own, OwnObjective)
    monkeypatch.setattr(OwnObjective, "model_extra", {"masks": given["masks"], "name": "reinforce"})
    made = own.loaded("behavior")
    assert gradient(made, HAND_SCENE).equal(gradient(with_masks("reinforce", {"of": "any", "low": 0.8}), HAND_SCENE))


def test_demonstrations_have_no_ratio_to_mask() -> None:
    def parse(objective: dict[str, object]) -> None:
        rounds = [{"rows": {"demonstrations": "x.jsonl"}, "objective": objective}]
        parse_experiment({**REST, "rounds": rounds}, "x.toml")

    parse({"name": "sft"})
    with pytest.raises(ConfigError, match="objective 'sft' compares with the policy that sampled, and nobody sampled"):
        parse({"name": "sft", "masks": [{"low": 0.5}]})
