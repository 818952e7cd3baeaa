"""The table of stages: complete, each with a time limit that an experiment sets, tried again only where it may help."""

import asyncio
import logging
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from prefect.events import Event
from prefect.states import Failed

from oapl_core.errors import ConfigError, DataError, Diverged, Held, Interrupted, SandboxError, StageFailed
from oapl_core.planning.plan import steps
from oapl_core.settings.experiment_file import parse_experiment
from oapl_core.settings.rounds import RoundConfig
from oapl_core.settings.time_limits import TimeLimits
from tasks.stage import raise_alarms, stage_task
from tests.core.reports.test_alarms import run_of

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


def test_a_jump_between_rounds_is_a_warning_and_an_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sent: list[Event] = []
    monkeypatch.setattr("tasks.stage.progress", logging.getLogger("a flow's"))  # Prefect's own wants a flow run
    monkeypatch.setattr("tasks.stage.emit_event", lambda *given, **more: sent.append(emitted(*given, **more)))
    run = run_of(tmp_path, [(20, 0, 1000), (80, 0, 1000), (81, 0, 1000)])
    for number in (0, 1, 2):
        raise_alarms(run, number, "groups.build")
    (event,) = sent
    assert (event.event, event.payload["round"]) == ("oapl.suspicious-jump", 1)
    assert event.resource.id == f"oapl.run.{run.root.name}"
    told = "round 0 to round 1: correct answers went from 20.0% to 80.0%"
    assert event.payload["message"].startswith(told)
    assert [record.levelname for record in caplog.records if told in record.message] == ["WARNING"]


def emitted(name: str, resource: dict[str, str], payload: dict[str, Any]) -> Event:
    """As Prefect makes an event of what it is given, whose resource must have an id; nothing is sent."""
    return Event(occurred=datetime.now(UTC), event=name, resource=resource, payload=payload)  # type: ignore[arg-type]
