"""Results divided by what is known of the problems: set, difficulty, platform and kind. Reads problems.parquet."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from oapl_core.evaluation.measures import Row, table
from oapl_core.tables import PROBLEMS, open_table

COLUMNS = ("source", "difficulty", "platform", "kind")


def tables(problems: Path, rows: Sequence[Row], resamples: int, seed: int) -> dict[str, list[dict[str, Any]]]:
    """For each column that divides the problems, its lines (measures.table)."""
    found = {column: table(rows, labels(problems, column), resamples, seed) for column in COLUMNS}
    return {column: lines for column, lines in found.items() if len(lines) > 1}


def labels(problems: Path, column: str) -> dict[str, str | None]:
    """What ``column`` says of each problem; nothing if the file is older than the column."""
    with open_table(problems, PROBLEMS) as file:
        if column not in file.schema_arrow.names:
            return {}
        found = file.read(columns=["problem_id", column])
    return dict(zip(found["problem_id"].to_pylist(), found[column].to_pylist(), strict=True))
