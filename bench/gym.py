"""Scores of each task before and after the rounds: ``python -m bench.gym RUN...`` on runs of gym.toml.

Writes docs/benchmarks/data/gym.json (for each run and task the mean score of the held-out answers of base and last
checkpoint, with the paired difference: 95 %, bootstrap over problems) and the table of docs/benchmarks/data.md.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl

from bench.claims.verdicts import table
from oapl_core.evaluation.pass_at_k import paired_difference
from oapl_core.run_folder.run import Run
from oapl_core.tables import EVALUATIONS, PROBLEMS, read_table

DATA = Path(__file__).resolve().parents[1] / "docs" / "benchmarks" / "data" / "gym.json"
RESAMPLES = 10_000


def main() -> None:
    """Collect, and make the table."""
    rows = [row for name in sys.argv[1:] for row in measured(Run.open(Path(name)))]
    DATA.write_text(json.dumps(rows, indent=0) + "\n")
    from bench.rounds import PAGE, page  # which takes this table from here

    PAGE.write_text(page(PAGE.read_text()))


def measured(run: Run) -> Iterator[dict[str, Any]]:
    """A row for each task."""
    answers = pl.DataFrame(read_table(run.evaluation(), EVALUATIONS)).filter(split="heldout")
    tasks = pl.DataFrame(read_table(run.problems, PROBLEMS, ["problem_id", "source"]))
    scores = answers.join(tasks, on="problem_id").group_by("source", "checkpoint", "problem_id")
    means = scores.agg(pl.col("reward").mean()).drop_nulls()
    # checkpoints are in the order in which they were measured, the base first
    first, last = (answers["checkpoint"].unique(maintain_order=True)[place] for place in (0, -1))
    for task in sorted(means["source"].unique()):
        of_task = means.filter(source=task)
        before, after = (
            dict(of_task.filter(checkpoint=name).select("problem_id", "reward").iter_rows()) for name in (first, last)
        )
        one = paired_difference(before, after, RESAMPLES, seed=0)
        assert one
        key = {"seed": run.config.seed, "task": task, "problems": len(before)}
        yield {**key, "base": one.first, "last": one.second, "low": one.change.low, "high": one.change.high}


def gym_table() -> str:
    """Each task, all seeds."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in json.loads(DATA.read_text()):
        found.setdefault(row["task"], []).append(row)
    rows = []
    for task, own in found.items():
        before, after = (", ".join(f"{row[name]:.3f}" for row in own) for name in ("base", "last"))
        changes = ", ".join(f"{r['last'] - r['base']:+.3f} ({r['low']:+.3f} to {r['high']:+.3f})" for r in own)
        verdict = "gets better" if all(row["low"] > 0 for row in own) else "not decided"
        verdict = "worse" if all(row["high"] < 0 for row in own) else verdict
        rows.append([f"`{task}`", before, after, changes, verdict])
    return table(["task", "base, each seed", "after two rounds", "difference", "by the criterion"], rows)


if __name__ == "__main__":
    main()
