"""The demo, killed with SIGKILL in the middle of each of its stages, ends with what an undisturbed one ends with."""

from collections.abc import Callable
from pathlib import Path

import pytest

from oapl_core.planning.plan import finished, steps, times
from oapl_core.run_folder.run import Run
from tests.whole_run import EXPERIMENT, content, kill_when, made_more_than_once, oapl

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]


def arguments(folder: Path) -> list[str]:
    return ["run", str(EXPERIMENT), f"runs_dir={folder / 'runs'}", f"cache_dir={folder / 'cache'}"]


def into(log: Path, title: str, seconds: float) -> Callable[[], bool]:
    """Whether step ``title`` has been running for ``seconds``."""
    import time

    started: list[float] = []

    def moment() -> bool:
        if not started and f"{title}: starting" in log.read_text():
            started.append(time.monotonic())
        return bool(started) and time.monotonic() - started[0] > seconds

    return moment


def test_killed_in_every_stage_the_demo_ends_with_the_same_artifacts(tmp_path: Path) -> None:
    undisturbed, disturbed = tmp_path / "undisturbed", tmp_path / "disturbed"
    oapl(arguments(undisturbed))
    expected = Run.open(undisturbed / "runs" / "demo-seed0")
    durations = {time.step.title: time.seconds for time in times(expected)}
    disturbed.mkdir()
    for number, step in enumerate(steps(expected.config)):
        log = disturbed / f"killed-{number}.log"
        log.touch()
        kill_when(arguments(disturbed), log, into(log, step.title, 0.6 * durations[step.title]))
        if number:
            found = Run.open(disturbed / "runs" / "demo-seed0")
            assert [s.title for s in finished(found)][:number] == [s.title for s in steps(found.config)][:number]
    oapl(arguments(disturbed))

    found = Run.open(disturbed / "runs" / "demo-seed0")
    assert made_more_than_once(found) == [], "finished parts are not redone"
    ours, theirs = found.ledger.artifacts(), expected.ledger.artifacts()
    assert sorted(ours) == sorted(theirs)
    different = [
        name
        for name in ours
        if name not in ("report", "base_model.json") and content(found, ours[name]) != content(expected, theirs[name])
    ]
    assert different == []
