"""Rows in any order -> whole groups, with bounded memory: rows wait in a file, memory holds where each one begins.

Takes the rows of a foreign data set; writes and reads one temporary file of JSON lines.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from oapl_extras.exchange.offline_row import complaint, group_key


@dataclass(frozen=True)
class Group:
    """The rows of one prompt, in the source's order."""

    key: str
    rows: list[dict[str, Any]]

    @property
    def agrees(self) -> bool:
        """Whether every row's list of rewards, where it has one, is the rewards of the rows that are here."""
        rewards = sorted(row["precomputed_reward"] for row in self.rows)
        return all(sorted(row.get("response_rewards", rewards)) == rewards for row in self.rows)


class GroupedRows:
    """The usable rows of a data set, by group."""

    def __init__(self, path: Path) -> None:
        """Keep rows in the temporary file ``path``, which the caller deletes."""
        self._path = path
        self._offsets: dict[str, list[int]] = {}
        """Offsets in bytes of each group's rows, by the group's key."""
        self.rows = 0
        """Rows seen, usable or not."""
        self.first_refused: str | None = None
        """Where the first one stands that is not usable, and why."""

    def fill(self, raw_rows: Iterable[Any]) -> Counter[str]:
        """Take every usable row; returns how many were refused, by reason. A text is a reason that was found before."""
        return self.fill_from((None, raw) for raw in raw_rows)

    def fill_from(self, placed: Iterable[tuple[str | None, Any]]) -> Counter[str]:
        """Fill the groups from rows with their places; returns the count of refused rows by reason."""
        refused: Counter[str] = Counter()
        with self._path.open("wb") as file:
            for where, raw in placed:
                self.rows += 1
                # a format's reader says why a row cannot be used in place of the row
                if reason := raw if isinstance(raw, str) else complaint(raw):
                    refused[reason] += 1
                    self.first_refused = self.first_refused or (where and f"{where}: {reason}")
                    continue
                self._offsets.setdefault(group_key(raw), []).append(file.tell())
                file.write(json.dumps(raw, default=str).encode() + b"\n")
        return refused

    def groups(self) -> Iterator[Group]:
        """Yield every group, in the order of their first rows; the same whenever asked."""
        # Several passes may be under way at once, so each has a file (and a position in it) of its own.
        with self._path.open("rb") as file:
            for key, offsets in self._offsets.items():
                yield Group(key, [_row_at(offset, file) for offset in offsets])


def _row_at(offset: int, file: IO[bytes]) -> dict[str, Any]:
    file.seek(offset)
    row: dict[str, Any] = json.loads(file.readline())
    return row
