"""Jumps of the share of correct answers, or of their length, are told; what training does is not."""

from pathlib import Path

import pytest

from oapl_core.reports.jumps import jumps
from oapl_core.run_folder.run import Run
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
    lines = list(jumps(run, 1))
    assert [text for text, line in zip(told, lines, strict=True) if f"round 0 to round 1: {text}" in line] == told
    assert not list(jumps(run, 0))
    assert not list(jumps(run, 2)), "that round is not there yet"
