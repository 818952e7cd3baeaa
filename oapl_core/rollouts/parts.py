"""Parts of rollouts: consecutive problems whose answers become one Parquet file, and the rows they have so far."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from oapl_core.run_folder.recorded import Recorded

Row = dict[str, Any]
"""One row of tables.ROLLOUTS."""


@dataclass(frozen=True)
class Provenance:
    """Weights, inputs and settings that rollouts are made from; a part made from others is sampled again."""

    policy_hash: str
    inputs: Mapping[str, str]
    settings: Mapping[str, Any]

    def has_made(self, folder: Recorded, part: Path) -> bool:
        """Tell whether ``part`` is recorded, of this provenance, and still what was recorded."""
        return folder.is_done(part, self.inputs, self.settings)


@dataclass
class Part:
    """Consecutive problems of the round and the rows that they have so far."""

    path: Path
    problems: list[str]
    group_size: int
    rows: dict[tuple[int, int], Row] = field(default_factory=dict)
    """Rows by place of the problem in the part, and sample."""
    started_s: float = 0.0
    """Clock when its first request was made."""

    @property
    def answers(self) -> int:
        """Number of rows that the part will have."""
        return len(self.problems) * self.group_size

    @property
    def is_whole(self) -> bool:
        """Whether every row is there."""
        return len(self.rows) == self.answers

    @property
    def missing(self) -> list[tuple[int, int]]:
        """Places and samples that have no row, in order."""
        places = ((place, sample) for place in range(len(self.problems)) for sample in range(self.group_size))
        return [key for key in places if key not in self.rows]

    def put_all(self, rows: Sequence[Row]) -> None:
        """Keep rows that an earlier process sampled.

        Raises:
            ValueError: one is of another part; none is kept.
        """
        found = {(self.problems.index(row["problem_id"]), row["sample"]): row for row in rows}
        if any(not 0 <= sample < self.group_size for _, sample in found):
            raise ValueError("a sample that is not asked for")
        self.rows.update(found)


def cut(problems: Sequence[str], size: int, group_size: int, folder: Path) -> list[Part]:
    """Cut parts of ``size`` problems, numbered from 0, the last one with what is left."""
    starts = range(0, len(problems), size)
    return [
        Part(folder / f"part-{number:05d}.parquet", list(problems[start : start + size]), group_size)
        for number, start in enumerate(starts)
    ]
