"""V(x): hand-computed cases, a NumPy transcription, limits, invariances."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from oapl_core.objectives.values import leave_one_out_values, log_mean_exp_values


def value(rewards: list[float], temperature: float) -> float:
    reward_S = torch.tensor(rewards, dtype=torch.float64)
    return float(log_mean_exp_values(reward_S, torch.zeros(len(rewards), dtype=torch.int32), temperature)[0])


@pytest.mark.parametrize(("correct", "expected"), [(1, 0.1946), (4, 0.6201), (7, 0.9177)])
def test_hand_computed_values_of_eight_rollouts(correct: int, expected: float) -> None:
    assert value([1.0] * correct + [0.0] * (8 - correct), 1.0) == pytest.approx(expected, abs=5e-5)


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=12), st.floats(0.05, 50))
def test_value_is_the_papers_equation(rewards: list[float], temperature: float) -> None:
    r = np.asarray(rewards, dtype=np.longdouble)
    expected = temperature * np.log(np.mean(np.exp(r / np.longdouble(temperature))))
    assert value(rewards, temperature) == pytest.approx(float(expected), abs=1e-9)


@given(st.lists(st.floats(-3, 3), min_size=1, max_size=8), st.floats(1e-6, 1e12))
def test_value_lies_between_mean_and_best(rewards: list[float], temperature: float) -> None:
    v = value(rewards, temperature)
    assert np.mean(rewards) - 1e-9 <= v <= max(rewards) + 1e-9


@pytest.mark.parametrize("rewards", [[1.0, 0.0, 0.0], [0.25, -3.0, 7.5, 7.5], [2.0, 2.0]])
def test_limits_are_best_and_mean(rewards: list[float]) -> None:
    best, mean = max(rewards), float(np.mean(rewards))
    assert value(rewards, 0.0) == best
    assert value(rewards, 1e-3) == pytest.approx(best, abs=1e-3 * math.log(len(rewards)) + 1e-12)
    assert value(rewards, 1e-300) == pytest.approx(best)
    assert value(rewards, 1e9) == pytest.approx(mean, abs=1e-7)
    assert value(rewards, 1e15) == pytest.approx(mean, abs=1e-12)
    assert value(rewards, math.inf) == pytest.approx(mean, abs=1e-15)


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from([0.0, 0.5, 1.0])), min_size=1, max_size=20), st.randoms())
def test_value_of_a_group_depends_on_neither_order_nor_other_groups(rows: list[tuple[int, float]], rng: object) -> None:
    shuffled = list(rows)
    rng.shuffle(shuffled)  # type: ignore[attr-defined]
    together = log_mean_exp_values(
        torch.tensor([r for _, r in shuffled]), torch.tensor([7 * g for g, _ in shuffled], dtype=torch.int32), 0.7
    )
    for (group, _), v in zip(shuffled, together.tolist(), strict=True):
        assert v == pytest.approx(value([r for g, r in rows if g == group], 0.7), abs=1e-12)


def test_a_group_of_equal_rewards_has_no_advantage_at_any_temperature() -> None:
    for temperature in (0.0, 1e-3, 1.0, 1e9, math.inf):
        assert value([1.0] * 8, temperature) == 1.0
        assert value([0.0] * 8, temperature) == 0.0


@pytest.mark.parametrize("temperature", [-1.0, math.nan])
def test_impossible_temperatures_are_refused(temperature: float) -> None:
    with pytest.raises(ValueError, match="value_temperature"):
        value([1.0, 0.0], temperature)


def test_vectors_of_different_length_are_refused() -> None:
    with pytest.raises(ValueError, match="two equal vectors"):
        log_mean_exp_values(torch.zeros(3), torch.zeros(2, dtype=torch.int32), 1.0)


def others(rewards: list[float], temperature: float) -> list[float]:
    reward_S = torch.tensor(rewards, dtype=torch.float64)
    return leave_one_out_values(reward_S, torch.full((len(rewards),), 5), temperature).tolist()


@given(
    st.lists(st.sampled_from([0.0, 0.25, 1.0, 3.0]) | st.floats(-3, 3), min_size=2, max_size=8),
    st.sampled_from([0.0, 1e-3, 0.05, 1.0, 30.0, math.inf]),
)
def test_a_value_without_the_own_reward_is_the_value_of_the_others(rewards: list[float], temperature: float) -> None:
    expected = [value(rewards[:i] + rewards[i + 1 :], temperature) for i in range(len(rewards))]
    assert others(rewards, temperature) == pytest.approx(expected, abs=1e-9)


def test_leaving_one_out_of_eight_by_hand() -> None:
    # the one correct answer sees seven wrong ones; a wrong one sees six and the right one: ln((e + 6) / 7) = .2195
    found = others([1.0] + [0.0] * 7, 1.0)
    assert found == pytest.approx([0.0] + [0.21951] * 7, abs=1e-5)


def test_an_only_rollout_has_no_advantage() -> None:
    found = leave_one_out_values(torch.tensor([1.0, 0.0, 0.5]), torch.tensor([2, 3, 3]), 1.0)
    assert found.tolist() == [1.0, 0.5, 0.0]
