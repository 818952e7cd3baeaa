"""Problems whose last group had no correct answer. Reads the verdicts of earlier rounds; writes nothing."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from oapl_core import tables
from oapl_core.errors import DataError
from oapl_core.run_folder.run import Run, parts_of

if TYPE_CHECKING:
    import polars as pl


def verdicts_before(run: Run, number: int) -> Iterator[list[Path]]:
    """Yield the parts of verdicts of each round before ``number`` that has rollouts, the newest round first.

    Raises:
        DataError: a round before it is not judged.
    """
    for earlier in reversed(range(number)):
        if run.config.rounds[earlier].source.has_rollouts:
            parts = parts_of(run.verdicts(earlier))
            if len(parts) < len(parts_of(run.rollouts(earlier))) or not parts:
                raise DataError(
                    f"{run.verdicts(earlier)}: is not complete, and round {number} begins answers by it; run again"
                )
            yield parts


def unsolved(run: Run, number: int) -> list[str]:
    """Return the problems whose last judged group before round ``number`` had no correct answer, sorted.

    Raises:
        DataError: a round before it is not judged.
    """
    solved = dict[str, bool]()
    for parts in verdicts_before(run, number):
        for name, is_solved in _groups(parts).iter_rows():
            solved.setdefault(name, is_solved)  # newer rounds come first
    return sorted(name for name, is_solved in solved.items() if not is_solved)


def _groups(parts: list[Path]) -> "pl.DataFrame":
    import polars as pl

    read = (tables.read_table(part, tables.VERDICTS, ["problem_id", "correct"]) for part in parts)
    # a verifier that failed says nothing of a problem; its rows go with the nulls
    frame = pl.concat([pl.DataFrame(table) for table in read]).drop_nulls("correct")
    return frame.group_by("problem_id").agg(pl.col("correct").any())
