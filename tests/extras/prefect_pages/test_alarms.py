"""Alarms are warnings of the log and events, once for each, after the stage that knows of them has ended well."""

import logging
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from prefect.events import Event

from oapl_core.run_folder.following import follow, made
from oapl_core.run_folder.ledger import StageEntry
from oapl_extras.prefect_pages import alarms
from tests.core.reports.test_alarms import run_of


def test_a_jump_between_rounds_is_a_warning_and_an_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sent: list[Event] = []
    monkeypatch.setattr(alarms, "progress", logging.getLogger("a flow's"))  # Prefect's own wants a flow run
    monkeypatch.setattr(alarms, "emit_event", lambda *given, **more: sent.append(emitted(*given, **more)))
    run = run_of(tmp_path, [(20, 0, 1000), (80, 0, 1000), (81, 0, 1000)])
    with follow(run, made(run, print, ["alarms"]), print, look_every_s=60):
        for number, exit_code in ((0, 0), (1, 1), (1, 0), (2, 0)):  # what failed is no news of a round
            run.ledger.append(StageEntry(f"groups.build round {number}", 1.0, exit_code))
        run.ledger.append(StageEntry("reports.write", 1.0, 0))
    (event,) = sent
    assert (event.event, event.payload["round"]) == ("oapl.suspicious-jump", 1)
    assert event.resource.id == f"oapl.run.{run.root.name}"
    told = "round 0 to round 1: correct answers went from 20.0% to 80.0%"
    assert event.payload["message"].startswith(told)
    assert [record.levelname for record in caplog.records if told in record.message] == ["WARNING"]


def emitted(name: str, resource: dict[str, str], payload: dict[str, Any]) -> Event:
    """As Prefect makes an event of what it is given, whose resource must have an id; nothing is sent."""
    return Event(occurred=datetime.now(UTC), event=name, resource=resource, payload=payload)  # type: ignore[arg-type]
