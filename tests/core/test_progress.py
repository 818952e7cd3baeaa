"""Progress lines say what, done/total, rate and time left."""

import pytest

from oapl_core.progress import PREFIX, Progress, Reading


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that progress reads, in seconds: its only number."""
    now = [100.0]
    monkeypatch.setattr("oapl_core.progress.time.monotonic", lambda: now[0])
    return now


def test_a_line_says_what_how_far_how_fast_and_how_long(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("sampling", 10, "rollouts", every_s=0.0) as progress:
        clock[0] += 10
        progress.advance(5, "loss 0.5")
        progress.advance(5)
    first, second, last = capsys.readouterr().out.splitlines()
    assert first == f"{PREFIX}sampling | 5/10 rollouts | 0.5/s | 10 s left | loss 0.5"
    assert second == last == f"{PREFIX}sampling | 10/10 rollouts | 1/s | 10 s | loss 0.5"


@pytest.mark.parametrize(
    ("seconds", "done", "said"),
    [(20, 1, "0.05/s | 20 s so far"), (4, 40, "10/s | 4 s so far"), (5, 2, "0.4/s | 19195 s left")],
)
def test_the_time_left_is_not_guessed_from_the_first_unit_or_seconds(
    seconds: float, done: int, said: str, clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    progress = Progress("verify", 7680, "rollouts", every_s=0.0)
    clock[0] += seconds
    progress.advance(done)
    assert capsys.readouterr().out == f"{PREFIX}verify | {done}/7680 rollouts | {said}\n"


def test_skipped_work_does_not_enter_the_rate(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("sampling", 20, "rollouts", every_s=0.0) as progress:
        progress.skip(10)
        clock[0] += 10
        progress.advance(5)
    assert f"{PREFIX}sampling | 15/20 rollouts | 0.5/s | 10 s left" in capsys.readouterr().out


def test_where_nothing_was_done_there_is_no_rate(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("sampling", 10, "rollouts") as progress:
        progress.skip(10)
    assert capsys.readouterr().out == f"{PREFIX}sampling | 10/10 rollouts | 0 s\n"


def test_a_failed_stage_does_not_claim_its_last_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RuntimeError), Progress("sampling", 10, "rollouts"):
        raise RuntimeError
    assert capsys.readouterr().out == ""


def test_a_line_is_read_back_as_it_was_written(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("sampling", 8, "rollouts", every_s=0.0) as progress:
        progress.advance(6)
    line = capsys.readouterr().out.splitlines()[0].removeprefix(PREFIX)
    reading = Reading.of(line)
    assert reading == Reading(line, 6, 8)
    assert reading.percent == 75.0


@pytest.mark.parametrize("line", ["", "vllm started in 3 s", "part-1: 3 of 4 | again", "a | b/c d"])
def test_another_line_is_no_progress(line: str) -> None:
    assert Reading.of(line) is None
