"""The table of stages: complete, each with a time limit that an experiment sets, tried again only where it may help."""

import asyncio

import pytest
from prefect.states import Failed

from oapl_core.errors import ConfigError, DataError, Diverged, Held, Interrupted, SandboxError, StageFailed
from oapl_core.planning.plan import steps
from oapl_core.settings.experiment_file import parse_experiment
from oapl_core.settings.operation.time_limits import TimeLimits
from oapl_core.settings.rounds import RoundConfig
from tasks.stage import stage_task

PROBLEMS = dict.fromkeys(("train", "validation", "heldout"), "problems.jsonl")


def test_every_step_of_every_plan_has_its_row_and_its_time_limit() -> None:
    config = parse_experiment({"name": "t", "pretrain": {"solutions": "s"}, "problems": PROBLEMS}, "test")
    for verb in (step.stage.verb for step in steps(config)):
        assert config.time_limits_h.seconds(verb) is None
        assert TimeLimits(**{verb.partition(".")[0]: 0.5}).seconds(verb) == 1800.0


def test_a_time_limit_may_change_while_a_run_goes_on(tmp_path: object) -> None:
    from oapl_core.run_folder.run import Run

    values = {"name": "t", "model": "m", "runs_dir": str(tmp_path), "problems": PROBLEMS}
    Run.create(parse_experiment(values, "test"))
    limited = Run.create(parse_experiment(values | {"time_limits_h": {"training": 2}}, "test"))
    assert Run.open(limited.root).config.time_limits_h.training == 2


def test_pauses_between_tries_grow() -> None:
    config = parse_experiment({"name": "t", "model": "m", "problems": PROBLEMS, "rounds": [RoundConfig()]}, "test")
    sampling = next(step for step in steps(config) if step.verb == "rollouts.generate")
    task = stage_task(sampling)
    assert (task.retries, task.retry_delay_seconds) == (2, [10.0, 20.0])
    assert task.tags == {"oapl-gpu"}


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (StageFailed("a lost GPU"), True),
        (OSError("a file server that is away"), True),
        (Diverged("loss is nan"), False),
        (ConfigError("a setting"), False),
        (DataError("a row"), False),
        (SandboxError("no sandbox"), False),
        (Held("another process"), False),
        (Interrupted("a person"), False),
        (AssertionError("our mistake"), False),
    ],
)
def test_only_what_a_machine_may_do_better_is_tried_again(error: Exception, again: bool) -> None:
    from tasks.stage import _is_worth_a_retry

    assert asyncio.run(_is_worth_a_retry(None, None, Failed(data=error))) is again  # type: ignore[arg-type]
