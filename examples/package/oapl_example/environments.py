"""A dictionary that the model may ask: ``[environment] function = "dictionary"``."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from oapl_core import ToolEnvironment, ToolError


class Dictionary(ToolEnvironment):
    """One tool, `define`, over the words given in ``settings = {words = {...}}``."""

    def __init__(self, words: Mapping[str, str]) -> None:
        """Keep the words.

        Args:
            words: each with its meaning.
        """
        self.words = dict(words)

    def reset(self, problem: Mapping[str, Any], seed: int) -> None:
        """Begin a trajectory; every problem has the same dictionary."""

    def tools(self) -> Sequence[Callable[..., str]]:
        """List the tools."""
        return [self.define]

    def define(self, word: str) -> str:
        """Looks a word up.

        Args:
            word: The word.

        Returns:
            Its meaning.
        """
        if word not in self.words:
            # the model reads this as the call's result; any other exception would be a failure of the environment
            raise ToolError(f"there is no {word[:20]!r} here")
        return self.words[word]
