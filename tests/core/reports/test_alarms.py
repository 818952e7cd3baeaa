"""Each rule speaks where its threshold is reached, and not before; what training does is not told."""

from pathlib import Path
from typing import Any

import pytest

from oapl_core.reports.alarms import alarms
from oapl_core.run_folder.run import Run
from oapl_core.run_folder.run_record import RunRecord
from oapl_core.settings.experiment_file import parse_experiment


def run_of(folder: Path, rounds: list[tuple[int, int, int]]) -> Run:
    """A ledger of rounds with 100 rollouts: (correct, not judged, tokens)."""
    sets = dict.fromkeys(("train", "validation", "heldout"), folder / "unused.jsonl")
    values = {"name": "j", "runs_dir": folder, "model": folder, "problems": sets, "rounds": [{}] * (len(rounds) + 1)}
    run = Run.create(parse_experiment(values, "test"))
    for number, (correct, unjudged, tokens) in enumerate(rounds):
        with run.writing(run.rollouts(number) / "part-00000.parquet", {}, {}) as draft:
            draft.path.write_text("")
            draft.rows, draft.details = 100, {"response_tokens": tokens}
        with run.writing(run.groups(number), {}, {}) as draft:
            draft.path.write_text("")
            counts = {"rollouts": 100, "correct_rollouts": correct, "dropped": {"verifier_error": unjudged}}
            draft.details = counts
    return run


@pytest.mark.parametrize(
    ("before", "now", "told"),
    [
        ((20, 0, 1000), (65, 0, 1500), []),
        ((20, 0, 1000), (71, 0, 1000), ["correct answers went from 20.0% to 71.0%"]),
        ((90, 0, 1000), (30, 0, 1000), ["correct answers went from 90.0% to 30.0%"]),
        ((10, 80, 1000), (30, 0, 1000), []),  # 10 of the 20 that were judged
        ((20, 0, 1000), (20, 0, 2000), ["answers went from 10 to 20 tokens"]),
        ((20, 0, 1000), (20, 0, 400), ["answers went from 10 to 4 tokens"]),
    ],
)
def test_only_what_goes_far_is_told(
    tmp_path: Path, before: tuple[int, int, int], now: tuple[int, int, int], told: list[str]
) -> None:
    run = run_of(tmp_path, [before, now])
    lines = [alarm.line for alarm in alarms(RunRecord(run), 1) if alarm.rule == "suspicious-jump"]
    assert [text for text, line in zip(told, lines, strict=True) if f"round 0 to round 1: {text}" in line] == told
    assert not [alarm for alarm in alarms(RunRecord(run), 0) if alarm.rule == "suspicious-jump"]
    assert not list(alarms(RunRecord(run), 2)), "that round is not there yet"


def judged(folder: Path, cut: int, unjudged: int, apart: float | None, **alarms: float) -> Run:
    """One round of 1,000 answers; the mismatch was measured in float32, of which 0.02 nats stop a run."""
    sets = dict.fromkeys(("train", "validation", "heldout"), folder / "unused.jsonl")
    values = {"name": "a", "runs_dir": folder, "model": folder, "problems": sets, "rounds": [{}], "alarms": alarms}
    run = Run.create(parse_experiment(values, "test"))
    said: list[tuple[Path, dict[str, Any]]] = [
        (run.rollouts(0) / "part-00000.parquet", {"response_tokens": 5000, "truncated": cut}),
        (run.groups(0), {"rollouts": 1000, "correct_rollouts": 9, "dropped": {"verifier_error": unjudged}}),
        *([(run.mismatch(0), {"mean": apart, "rounding": 0.0})] if apart is not None else []),
    ]
    for path, details in said:
        with run.writing(path, {}, {}) as draft:
            draft.path.write_text("")
            draft.rows, draft.details = 1000, details
    return run


@pytest.mark.parametrize(
    ("numbers", "settings", "told"),
    [
        ((499, 4, 0.0099), {}, []),
        ((500, 0, None), {}, ["truncated: 50.0% of the answers were cut"]),
        ((0, 5, None), {}, ["verifier-errors: 5 of 1,000 answers could not be judged (0.5%)"]),
        ((0, 0, 0.01), {}, ["mismatch: log-probs of engine and trainer differ by 0.01 nats per token; 0.02 stops"]),
        ((0, 0, 0.0), {"mismatch": 0.0}, []),
        ((900, 90, 0.015), {"truncated": 1.0, "verifier_errors": 0.1, "mismatch": 0.9}, []),
    ],
)
def test_a_threshold_that_is_reached_is_told(
    tmp_path: Path, numbers: tuple[int, int, float | None], settings: dict[str, Any], told: list[str]
) -> None:
    lines = [
        f"{alarm.rule}: {alarm.line.removeprefix('round 0: ')}"
        for alarm in alarms(RunRecord(judged(tmp_path, *numbers, **settings)), 0)
    ]
    assert [text for text, line in zip(told, lines, strict=True) if line.startswith(text)] == told


def test_a_rule_speaks_once_after_the_stage_that_knows(tmp_path: Path) -> None:
    run = judged(tmp_path, 900, 90, 0.015)
    assert [alarm.rule for alarm in alarms(RunRecord(run), 0, after="groups.build")] == ["verifier-errors", "truncated"]
    assert [alarm.rule for alarm in alarms(RunRecord(run), 0, after="training.train")] == ["mismatch"]
    assert not list(alarms(RunRecord(run), 0, after="verdicts.verify"))


def test_thresholds_may_change_while_a_run_is_unfinished(tmp_path: Path) -> None:
    judged(tmp_path, 900, 0, None)
    assert not list(alarms(RunRecord(judged(tmp_path, 900, 0, None, truncated=0.95)), 0))
