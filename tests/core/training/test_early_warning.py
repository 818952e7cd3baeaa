"""When the trainer says that a fall may come: once, by the last ten steps, also in a resumed epoch."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from oapl_core.training.early_warning import EarlyWarning
from tests.core.training.made_round import made_groups, make_run, train_in_a_process, write_groups


def steps(values: Sequence[float | None]) -> list[dict[str, Any]]:
    return [{"step": number, "log_ratio_right": value} for number, value in enumerate(values, 1)]


def test_it_is_said_once_when_the_mean_of_ten_steps_is_below_0() -> None:
    made = steps([0.5] * 10 + [-0.6] * 20)
    warned = EarlyWarning()
    said = [(step["step"], line) for step in made if (line := warned(step))]
    assert [number for number, _ in said] == [15], "5 steps of .5 and 5 of -.6"
    assert (
        "step 15: correct answers are less likely than when they were sampled (log_ratio_right -0.05 over" in said[0][1]
    )


def test_steps_without_a_correct_answer_or_a_policy_to_compare_with_say_nothing() -> None:
    warned = EarlyWarning()
    assert not [line for step in steps([None] * 20) if (line := warned(step))]
    assert [step["step"] for step in steps([-1.0] * 5 + [None] * 5 + [-1.0] * 5) if warned(step)] == [15]


def test_a_resumed_epoch_neither_says_it_again_nor_forgets() -> None:
    made = steps([-1.0] * 30)
    assert not [line for step in made[20:] if (line := EarlyWarning(made[:20])(step))]
    resumed = EarlyWarning(made[:6])
    assert [step["step"] for step in made[6:] if resumed(step)] == [10]


def test_the_trainer_says_it(tmp_path: Path, sharp_model: Path) -> None:
    run = make_run(tmp_path, sharp_model, epochs=4, max_mismatch=1.0)
    far = [row | {"behavior_logprobs": [x + 0.5 for x in row["behavior_logprobs"]]} for row in made_groups(sharp_model)]
    write_groups(run, far)
    said = [line for line in train_in_a_process(run).splitlines() if "warning: step" in line]
    assert len(said) == 1
    assert "round 0: warning: step 10: correct answers are less likely" in said[0]
