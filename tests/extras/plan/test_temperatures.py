"""`oapl plan` says what beta1 and beta2 mean at an experiment's answers and rewards, and warns of a wide scale."""

from typing import Any

import pytest

from oapl_core.settings.experiment_file import parse_experiment
from oapl_extras.plan.temperatures import temperatures

JUDGE = {"url": "http://localhost/v1", "model": "m", "prompt": {"file": "j", "text": "{{ response }}"}, "canaries": "c"}


def said(**more: Any) -> list[tuple[str, str]]:
    values = {"name": "x", "model": "m", "problems": {"train": "a", "heldout": "b"}, **more}
    return temperatures(parse_experiment(values, "test"))


def test_the_paper_moves_a_tenth_of_a_nat_a_token() -> None:
    ((label, line),) = said()
    assert label == "objective"
    assert "beta2 0.001: an advantage of 1 moves an answer by 1,000 nats, 0.1 for each of 10,000 tokens" in line
    # 1 ln((1 + e) / 2)
    assert "V of a group that is half right is 0.62" in line


def test_short_answers_move_more_a_token() -> None:
    assert "2 for each of 500 tokens" in said(sampling={"max_tokens": 500})[0][1]


@pytest.mark.parametrize(
    ("reward", "warned"),
    [
        ({"judge": JUDGE | {"scale": 10}}, None),
        ({"judge": JUDGE | {"scale": 10}, "parts": {"judge": 10.0}}, "rewards range over 10"),
        ({"parts": {"verdict": 1.0, "format": 0.5, "overlong": 1.0}}, "rewards range over 2.5"),
        ({"parts": {"verdict": 1.0, "format": 0.5}}, None),
    ],
)
def test_a_wide_scale_of_rewards_is_warned_of(reward: dict[str, Any], warned: str | None) -> None:
    lines = [line for label, line in said(reward=reward) if label == "warning"]
    assert len(lines) == (warned is not None)
    assert warned is None or (warned in lines[0] and "multiply both temperatures by it" in lines[0])


def test_a_function_of_ones_own_may_return_anything() -> None:
    reward = {"function": "json:dumps"}
    assert "whose range only its function knows" in said(reward=reward)[0][1]


def test_an_objective_without_both_says_nothing() -> None:
    assert said(objective={"name": "rft"}) == []
