"""A run folder whose every number is given by hand: held-out counts, optimiser steps, rollouts of two rounds."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from oapl_core import tables
from oapl_core.run_folder.ledger import RemovalEntry
from oapl_core.run_folder.run import Run
from oapl_core.run_folder.run_record import verdicts_on
from tests.synthetic_run import Sizes, experiment

Counts = dict[str, dict[str, tuple[int, int]]]
"""Checkpoint -> held-out problem -> (judged answers, correct ones)."""
FORCED = "round 1 epoch 1 (chosen on what is reported)"
HASHES = {
    "base": "hash-base",
    "round 0": "hash-0-1",
    "round 1 epoch 2": "hash-1-2",
    FORCED: "hash-1-1",
    "round 1 epoch 1": "hash-1-1",
}
COUNTS: Counts = {
    "base": {"aime/1": (4, 0), "aime/2": (4, 2), "hmmt/1": (4, 1)},
    "round 0": {"aime/1": (4, 1), "aime/2": (4, 4), "hmmt/1": (4, 2)},
    "round 1 epoch 1": {"aime/1": (4, 3), "aime/2": (4, 4), "hmmt/1": (3, 3)},
}
SHARES = {(0, 1): (0.25, 0.75), (1, 1): (0.5, 1.0), (1, 2): (0.5, 0.5)}
"""(round, epoch) -> right_share of its two steps."""
ROLLOUTS = (40, 20)


def write_measured_run(
    runs_dir: Path,
    counts: Counts = COUNTS,
    shares: Mapping[tuple[int, int], Sequence[float]] = SHARES,
    seed: int = 0,
    is_finished: bool = True,
    entropy: str = "entropy",
    **settings: Any,
) -> Run:
    """Two rounds of 1 and 2 epochs. A problem's set is what stands before the slash of its id.

    Args:
        runs_dir: folder for the run folder.
        counts: what was measured; the evaluation is one file, or one for each checkpoint if it is not finished.
        shares: what was trained; entropy is 1 minus the share, the behaviour policy's is 0.5 more.
        seed: of the run.
        is_finished: whether the evaluation is.
        entropy: name of the metric; ``policy_entropy`` is an earlier version's estimate.
        **settings: of the experiment, others than those of tests/synthetic_run.py.
    """
    run = Run.create(experiment(runs_dir, Sizes(epochs=(1, 2)), seed).model_copy(update=settings))
    problems = list(dict.fromkeys(name for by_problem in counts.values() for name in by_problem))
    with run.writing(run.problems, {}, {}) as draft:
        draft.rows = tables.write_table(draft.path, tables.PROBLEMS, [_problem(name) for name in problems])
    with run.writing(run.prompts, {}, {}) as draft:
        rows = [{"problem_id": name, "split": "heldout", "prompt": "?", "prompt_ids": [1]} for name in problems]
        draft.rows = tables.write_table(draft.path, tables.PROMPTS, rows)
    for number, rollouts in enumerate(ROLLOUTS):
        if any(trained == number for trained, _ in shares):
            with run.writing(run.rollouts(number) / "part-00000.parquet", {}, {}) as draft:
                draft.path.write_text("no figure reads rollouts")
                draft.rows = rollouts
    for (number, epoch), values in shares.items():
        with run.writing(run.checkpoint(number, epoch), {}, {}) as draft:
            draft.path.mkdir()
            lines = [json.dumps(_step(share, entropy)) + "\n" for share in values]
            (draft.path / "training_metrics.jsonl").write_text("".join(lines))
            draft.details = {"policy_hash": f"hash-{number}-{epoch}"}
    _write_answers(run, {name: _answers(name, by_problem) for name, by_problem in counts.items()}, is_finished)
    return run


def _write_answers(run: Run, answers: Mapping[str, list[dict[str, Any]]], is_finished: bool) -> None:
    if not is_finished:
        for name, rows in answers.items():
            _write_part(
                run, run.evaluations() / f"{name.replace(' ', '_')}_heldout/1_rollouts/part-00000.parquet", rows
            )
        return
    with run.writing(run.evaluation(), {}, {}) as draft:
        rows = [row for rows in answers.values() for row in rows]
        draft.rows = tables.write_table(draft.path, tables.EVALUATIONS, rows)
        forced = {"chosen": FORCED, "chosen_on": "heldout"}
        draft.details = forced if FORCED in answers else {"chosen": "round 1 epoch 1", "chosen_on": "validation"}


def _write_part(run: Run, part: Path, rows: list[dict[str, Any]]) -> None:
    """Rollouts and verdicts of one checkpoint, as an unfinished evaluation has them."""
    for path, fields in ((part, tables.ROLLOUTS), (verdicts_on(part), tables.VERDICTS)):
        empty = dict.fromkeys(name for name, _ in fields)
        known = [
            empty
            | {name: value for name, value in row.items() if name in empty}
            | {"rollout_id": f"{row['problem_id']}/s{row['sample']}"}
            | ({"response_ids": [1], "logprobs": [-1.0]} if fields is tables.ROLLOUTS else {})
            for row in rows
        ]
        with run.writing(path, {}, {}) as draft:
            draft.rows = tables.write_table(draft.path, fields, known)


def remove_rollouts(run: Run) -> None:
    """As `oapl clean` does."""
    for number in range(len(ROLLOUTS)):
        path = run.rollouts(number) / "part-00000.parquet"
        entry = run.ledger.artifacts()[run.name(path)]
        run.ledger.append(RemovalEntry(entry.artifact, entry.sha256, entry.bytes, "rollouts=0"))
        path.unlink()


def _problem(name: str) -> dict[str, Any]:
    given = {"problem_id": name, "split": "heldout", "kind": "math", "statement": "?", "answer": "1", "tests": []}
    return dict.fromkeys(column for column, _ in tables.PROBLEMS) | given | {"source": name.partition("/")[0]}


def _step(share: float, entropy: str) -> dict[str, Any]:
    return {
        "right_share": share,
        entropy: 1 - share,
        "token_entropy": 2.0,
        "token_log_ratio": -0.5 - share,
        "response_tokens": 10,
    }


def _answers(checkpoint: str, counts: Mapping[str, tuple[int, int]]) -> list[dict[str, Any]]:
    empty = dict.fromkeys(column for column, _ in tables.EVALUATIONS)
    return [
        empty
        | {
            "checkpoint": checkpoint,
            "policy_hash": HASHES[checkpoint],
            "split": "heldout",
            "problem_id": problem,
            "kind": "math",
            "sample": sample,
            "reward": None if sample >= judged else float(sample < right),
            "correct": None if sample >= judged else sample < right,
            "outcome": "passed",
            "response_tokens": 1,
            "finish_reason": "stop",
            "text": "",
        }
        for problem, (judged, right) in counts.items()
        for sample in range(4)
    ]
