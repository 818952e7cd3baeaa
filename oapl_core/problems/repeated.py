"""Problems that are only measured on and have the statement of a training problem. Pure.

Statements are the same that have the same words in the same order, whatever their case, spaces and line breaks.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from oapl_core.planning.warnings import REPEATED

_WORD = re.compile(r"\w+|[^\w\s]")


def words(text: str) -> list[str]:
    """Split a text into words and marks, in lower case."""
    return _WORD.findall(text.casefold())


def same(text: str) -> str:
    """Return a hash of the words in order, which equal statements have in common."""
    return hashlib.blake2b(" ".join(words(text)).encode(), digest_size=16).hexdigest()


class Repeated:
    """Counts measured problems whose statement a training problem before them has."""

    def __init__(self) -> None:
        """Begin with no problem seen."""
        self._trained: dict[str, str] = {}
        self._counts = Counter[str]()
        self._first: tuple[str, str] | None = None

    def watched(self, problems: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Yield the same problems and note repetitions; those of training come first."""
        for problem in problems:
            self._note(problem["problem_id"], problem["split"], same(problem["statement"]))
            yield problem
            del problem  # before the next one is made: each may have 189 MB of tests

    def _note(self, name: str, split: str, statement: str) -> None:
        if split == "train":
            self._trained.setdefault(statement, name)
        elif other := self._trained.get(statement):
            self._counts[split] += 1
            # a held-out one is what the report is about
            if self._first is None or (split == "heldout" and self._counts[split] == 1):
                self._first = (name, other)

    @property
    def details(self) -> dict[str, Any]:
        """Facts for the ledger: counts by split, and the first repetition with its training problem; empty for none."""
        return {REPEATED: {**self._counts, "first": list(self._first)}} if self._first else {}
