"""Rows in any order -> whole groups, with bounded memory: rows are dealt to files by the hash of their group.

A group lies in one file; one file at a time is read, and of it one group at a time is parsed.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oapl_core.exchange.offline_row import complaint, group_key

_SOURCE_BYTES = 4 * 2**20
"""Of the source's bytes one file should get so many; text and ids are several times larger there."""
_MOST_FILES = 256


@dataclass(frozen=True)
class Group:
    """The rows of one prompt, in the source's order."""

    key: str
    rows: list[dict[str, Any]]

    @property
    def agrees(self) -> bool:
        """Whether every row's list of rewards is the rewards of the rows that are here, in any order."""
        found = sorted(row["precomputed_reward"] for row in self.rows)
        return all(sorted(row["response_rewards"]) == found for row in self.rows)


class Buckets:
    """Rows on their way to their groups, in files below ``folder``."""

    def __init__(self, folder: Path, source_bytes: int) -> None:
        """``folder`` must be empty or missing."""
        folder.mkdir(parents=True, exist_ok=True)
        count = max(1, min(_MOST_FILES, source_bytes // _SOURCE_BYTES))
        self._files = [folder / f"bucket-{i:03d}.jsonl" for i in range(count)]
        self.rows = 0

    def fill(self, raw_rows: Iterable[Any]) -> Counter[str]:
        """Take every usable row; returns how many were left out, by reason."""
        refused: Counter[str] = Counter()
        with ExitStack() as stack:
            files = [stack.enter_context(path.open("w", encoding="ascii")) for path in self._files]
            for raw in raw_rows:
                self.rows += 1
                reason = complaint(raw)
                if reason:
                    refused[reason] += 1
                    continue
                key = group_key(raw)
                files[int(key, 16) % len(files)].write(f"{key} {json.dumps(raw, default=str)}\n")
        return refused

    def groups(self) -> Iterator[Group]:
        """Every group, file by file, in the order of their first rows; the same whenever asked."""
        for path in self._files:
            lines: dict[str, list[str]] = {}
            with path.open(encoding="ascii") as file:
                for line in file:
                    lines.setdefault(line[:16], []).append(line)
            for key, mine in lines.items():
                yield Group(key, [json.loads(line[17:]) for line in mine])
