"""Rows that are read from a person's files, some of each, for imitation."""

from typing import Self

from oapl_core.settings.rows import RowSource


class ReadRows(RowSource):
    """A source that takes a number of rows of each file, with answers of some length."""

    @property
    def most_of_a_file(self) -> int | None:
        """Number of rows that are taken of each file; None: all."""
        return None

    @property
    def longest(self) -> int | None:
        """Tokens of the longest answer; None: `sampling.max_tokens`."""
        return None

    def rehearsed(self, limit: int, longest: int) -> Self:
        """Return the source for a rehearsal: ``limit`` rows of a file, answers of at most ``longest`` tokens."""
        return self
