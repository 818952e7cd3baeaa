"""Whether an imported prompt asks what the experiment only measures; pure.

A prompt has more words than its problem's statement: those of a template, of turns, of a chat format. So it asks a
problem whose statement, with the same words in order (sameness.py), stands in it whole. A statement of fewer than 13
words (likeness.py says why 13) has to stand there as a sentence. So `2 + 2 + 3` does not ask the problem `2 + 2`. A
prompt also asks a problem that this experiment asks in the same words.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from oapl_core.problems.encoding import Encode
from oapl_core.problems.likeness import OVERLAP_WORDS
from oapl_core.problems.prompts import conversation
from oapl_core.problems.sameness import same, words
from oapl_core.settings.problems import PromptConfig

_HEAD = 8
"""Most words of a statement by which it is looked up."""
_ENDS = frozenset(".?!:")
"""Marks after which a sentence ends."""


class MeasuredPrompts:
    """Statements and prompts of the problems that are only measured."""

    def __init__(
        self, problems: Iterable[Mapping[str, Any]], encode: Encode, config: PromptConfig, tokenizer: Any
    ) -> None:
        """Index ``problems``, rows of tables.PROBLEMS, as ``encode`` and ``config`` ask them."""
        self._tokenizer = tokenizer
        # all_special_ids has only those with a role of their own; a template's markers are among the added tokens
        added = tokenizer.added_tokens_decoder.items()
        self._marks = {number for number, token in added if token.special}.union(tokenizer.all_special_ids)
        self._prompts = set[str]()
        self._by_head: dict[tuple[str, ...], list[list[str]]] = {}
        known = set[str]()
        for problem in problems:
            self._prompts.add(same(self._plain(encode(conversation(problem, config))[1])))
            statement, name = words(problem["statement"]), same(problem["statement"])
            if statement and name not in known:
                known.add(name)
                self._by_head.setdefault(tuple(statement[:_HEAD]), []).append(statement)
        self._lengths = sorted({len(head) for head in self._by_head})

    def has(self, prompt: Sequence[int]) -> bool:
        """Tell whether a prompt of these token ids asks one of the problems."""
        text = self._plain(prompt)
        return same(text) in self._prompts or any(self._found(text))

    def _plain(self, ids: Sequence[int]) -> str:
        """Decode a prompt with a line break for special tokens, so that words on both sides stay two."""
        pieces: list[list[int]] = [[]]
        for number in ids:
            if number not in self._marks:
                pieces[-1].append(number)
            elif pieces[-1]:
                pieces.append([])
        return "\n".join(self._tokenizer.decode(piece) for piece in pieces)

    def _found(self, text: str) -> Iterator[bool]:
        """Yield for each statement that begins somewhere in ``text`` whether it stands there whole."""
        said, lines = list[str](), set[int]()
        for line in text.splitlines():
            lines.add(len(said))
            said += words(line)
        lines.add(len(said))
        for place in range(len(said)):
            for length in self._lengths:
                for statement in self._by_head.get(tuple(said[place : place + length]), ()):
                    end = place + len(statement)
                    if said[place:end] == statement:
                        begins = place in lines or said[place - 1] in _ENDS
                        ends = end in lines or statement[-1] in _ENDS
                        yield len(statement) >= OVERLAP_WORDS or (begins and ends)
