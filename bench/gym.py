"""Scores of each task before and after the rounds: ``python -m bench.gym RUN...`` on runs of gym.toml.

Prints a row for each run and task: the mean score of held-out answers of the base and of the last checkpoint, and the
paired difference with its 95 % interval (bootstrap over problems). Reads the runs' evaluations; writes nothing.
"""

import sys
from pathlib import Path

import polars as pl

from oapl_core.evaluation.pass_at_k import paired_difference
from oapl_core.run_folder.run import Run
from oapl_core.tables import EVALUATIONS, PROBLEMS, read_table

RESAMPLES = 10_000


def rows(run: Run) -> list[str]:
    """Lines of the table."""
    answers = pl.DataFrame(read_table(run.evaluation(), EVALUATIONS)).filter(split="heldout")
    tasks = pl.DataFrame(read_table(run.problems, PROBLEMS, ["problem_id", "source"]))
    scores = answers.join(tasks, on="problem_id").group_by("source", "checkpoint", "problem_id")
    means = scores.agg(pl.col("reward").mean()).drop_nulls()
    # checkpoints are in the order in which they were measured, the base first
    first, last = (answers["checkpoint"].unique(maintain_order=True)[place] for place in (0, -1))
    found = []
    for task in sorted(means["source"].unique()):
        of_task = means.filter(source=task)
        before, after = (
            dict(of_task.filter(checkpoint=name).select("problem_id", "reward").iter_rows()) for name in (first, last)
        )
        one = paired_difference(before, after, RESAMPLES, seed=0)
        assert one
        interval = f"{one.change.low:+.3f} to {one.change.high:+.3f}"
        cells = (
            run.config.seed,
            task,
            f"{one.first:.3f}",
            f"{one.second:.3f}",
            f"{one.change.mean:+.3f}",
            interval,
        )
        found.append("| " + " | ".join(map(str, cells)) + " |")
    return found


def main() -> None:
    print("| seed | task | base | after two rounds | difference | 95 % interval |\n|---|---|---|---|---|---|")
    for name in sys.argv[1:]:
        print("\n".join(rows(Run.open(Path(name)))))


if __name__ == "__main__":
    main()
