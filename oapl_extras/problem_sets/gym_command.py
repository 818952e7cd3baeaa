"""`oapl gym`: problems from a task of reasoning-gym."""

import json
from pathlib import Path
from textwrap import wrap
from typing import Annotated, Literal

import typer
from pydantic import NonNegativeInt, PositiveInt

from deployments.terminal import tell
from oapl_core.errors import ConfigError, DataError
from oapl_core.files import sha256_of
from oapl_core.problems.raw_rows import raw_rows
from oapl_core.problems.set_files import check_name, write_problem_set
from oapl_core.settings.experiment_file import applied, parse_as
from oapl_core.settings_group import Settings
from oapl_core.storable import json_text
from oapl_extras.problem_sets.curation import Tally
from oapl_extras.problem_sets.problems_command import Solutions
from oapl_extras.problem_sets.reasoning_gym import TRIES, demonstration, task_names, task_problems

_WIDTH = 112


class GymConfig(Settings):
    """Settings that are no task's own, KEY=VALUE on the command line."""

    size: PositiveInt = 500
    """Number of problems."""
    seed: NonNegativeInt = 0
    """Seed of the entries."""
    split: Literal["train", "validation", "heldout"] = "train"
    """Use of the problems."""


_OURS = GymConfig.model_fields.keys()


def gym(
    task: Annotated[str | None, typer.Argument(metavar="[TASK]", help="Task; unset: list the tasks.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...",
            help="size=500 problems, seed=0 of the entries, split=train; then settings of the task: max_terms=3.",
        ),
    ] = None,
    to: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File to write: .jsonl, .jsonl.gz or .parquet.")
    ] = None,
    against: Annotated[
        list[Path] | None, typer.Option(help="Leave out statements of this set; again for more.")
    ] = None,
    solutions: Solutions = None,
) -> None:
    """Make problems from a task of reasoning-gym, to be scored by the task itself (docs/data.md)."""
    if task is None:
        for line in wrap(" ".join(task_names()), _WIDTH):
            tell(line)
        return
    if to is None:
        raise ConfigError("say which file to write with --to FILE.jsonl")
    check_name(to)
    # no task has settings of these names: reasoning-gym itself takes them for every task
    config = applied(settings)
    asked = parse_as(GymConfig, {key: config.pop(key) for key in _OURS & config.keys()}, "oapl gym")
    size, seed = asked.size, asked.seed
    tally, known = Tally(), {text for path in against or () for text in _statements(path)}
    problems = list(task_problems(task, config, seed, size, asked.split, tally, known))
    reasons = "".join(f"\n  dropped {count:>7,}  {reason}" for reason, count in tally.dropped.most_common())
    if not problems:
        raise DataError(f"{task}: none of {tally.read:,} entries can be used{reasons}".replace("\n ", ";"))
    write_problem_set(to, problems)
    made = {"task": task, "config": config, "seed": seed, "size": size, "against": list(map(str, against or ()))}
    counts = {"read": tally.read, "kept": tally.kept, "dropped": dict(tally.dropped), "sha256": sha256_of(to)}
    to.with_name(f"{to.name}.origin.json").write_text(json.dumps({"set": "reasoning-gym", **made, **counts}) + "\n")
    if solutions:
        lines = (json_text(row) + "\n" for row in map(demonstration, problems) if row)
        solutions.write_text("".join(lines), encoding="utf-8")
    fewer = f" of {size:,} wanted ({TRIES * size:,} entries were tried)" if tally.kept < size else ""
    tell(f"{to}: {tally.kept:,} problems{fewer}{reasons}")


def _statements(path: Path) -> list[str]:
    """Read the statements of a problem set of ours."""
    rows = [row for _, row in raw_rows(path)]
    if not all(isinstance(row, dict) and isinstance(row.get("statement"), str) for row in rows):
        raise ConfigError(f"{path}: is not a problem set of ours")
    return [row["statement"] for row in rows]
