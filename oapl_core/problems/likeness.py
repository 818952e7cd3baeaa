"""Likeness of statements: the same, nearly the same, or with pieces of one another. Pure.

Words are compared, whatever their case, spaces and line breaks. *Near* is the Jaccard similarity of the two sets of
5-word pieces. Candidates come from MinHash with bands (Broder 1997; Leskovec et al., Mining of Massive Datasets, 3.4);
the similarity of each is then computed exactly. *Overlap* is the share of the 13-word pieces of an evaluation problem
that a training problem contains (13: as in GPT-3's contamination study, appendix C). Pieces that several evaluation
problems have are boilerplate of their platform and do not count.
"""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from oapl_core.problems.sameness import same
from oapl_core.problems.sameness import words as words_of

if TYPE_CHECKING:
    import numpy as np

# Short pieces see through small edits, and whole statements are compared. Long ones: 13 words in a row are hardly ever
# shared by chance, so that even a few of them in a long training statement mean a copy.
NEAR_WORDS = 5
OVERLAP_WORDS = 13
_BOILERPLATE = 3
"""Pieces in more evaluation problems than this identify none of them."""
_BANDS, _ROWS = 32, 4
"""A pair of similarity s becomes a candidate with probability 1 - (1 - s^rows)^bands: 1 - 5e-8 at 0.8, 0.87 at 0.5."""


OVERLAP_LIMIT = 0.3
"""Share of an evaluation problem's 13-word pieces from which on a training problem counts as a copy of it."""


@lru_cache(maxsize=8)  # a statement is looked for, then remembered
def pieces(text: str, words: int) -> "np.ndarray[Any, np.dtype[np.uint64]]":
    """Return sorted hashes of every run of so many words; of a shorter text, one hash of all of it."""
    import numpy as np

    hashes = np.array([_word_hash(word) for word in words_of(text)], dtype=np.uint64)
    length = min(words, len(hashes))
    if length == 0:
        return hashes
    total = np.zeros(len(hashes) - length + 1, dtype=np.uint64)
    # A polynomial modulo 2^64: the same for the same words in the same order. Its base is 2^64 / the golden ratio, made
    # odd: no power of it vanishes, and its bits are well mixed.
    for offset in range(length):
        total = total * np.uint64(0x9E3779B97F4A7C15) + hashes[offset : offset + len(total)]
    return np.unique(total)


@lru_cache(maxsize=2**18)  # a language's words come again and again
def _word_hash(word: str) -> int:
    return int.from_bytes(hashlib.blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")


class NearDuplicates:
    """Statements seen so far, and which of them a new one nearly is."""

    def __init__(self, threshold: float = 0.8) -> None:
        """Begin empty; ``threshold``: smallest Jaccard similarity that counts as near."""
        import numpy as np

        self.threshold = threshold
        self._buckets: defaultdict[tuple[int, bytes], list[int]] = defaultdict(list)
        self._seen: list[tuple[str, Any]] = []
        # Multiplying by a random odd number permutes the hashes; the smallest of each permutation is the signature.
        generator = np.random.default_rng(0)
        self._factors = generator.integers(0, 2**63, (_BANDS * _ROWS, 1), dtype=np.uint64) * np.uint64(2) + np.uint64(1)

    def find(self, statement: str) -> str | None:
        """Return the name of the first statement that is near; None if none is."""
        ours = pieces(statement, NEAR_WORDS)
        candidates = {number for key in self._keys(ours) for number in self._buckets.get(key, ())}
        for number in sorted(candidates):
            name, other = self._seen[number]
            if _jaccard(ours, other) >= self.threshold:
                return name
        return None

    def add(self, name: str, statement: str) -> None:
        """Remember a statement under a name."""
        ours = pieces(statement, NEAR_WORDS)
        for key in self._keys(ours):
            self._buckets[key].append(len(self._seen))
        self._seen.append((name, ours))

    def _keys(self, ours: Any) -> list[tuple[int, bytes]]:
        if not len(ours):  # a statement without words is like no other
            return []
        signature = (ours[None, :] * self._factors).min(axis=1)
        return [(band, signature[band * _ROWS : (band + 1) * _ROWS].tobytes()) for band in range(_BANDS)]


def _jaccard(ours: Any, theirs: Any) -> float:
    import numpy as np

    shared = len(np.intersect1d(ours, theirs, assume_unique=True))
    return shared / (len(ours) + len(theirs) - shared)


class Overlap:
    """Evaluation statements, and how much of one a training statement contains."""

    def __init__(self, statements: Iterable[tuple[str, str]]) -> None:
        """Index ``statements``: (name, statement) of every evaluation problem; the same one twice counts once."""
        distinct = {same(statement): (name, statement) for name, statement in statements}
        self._names: list[str] = []
        self._sizes: list[int] = []
        self._owners: defaultdict[int, list[int]] = defaultdict(list)
        every = [(name, pieces(statement, OVERLAP_WORDS).tolist()) for name, statement in distinct.values()]
        counts = Counter(piece for _, all_pieces in every for piece in all_pieces)
        for number, (name, all_pieces) in enumerate(every):
            own = [
                piece for piece in all_pieces if counts[piece] <= _BOILERPLATE
            ] or all_pieces  # all boilerplate: all of it
            self._names.append(name)
            self._sizes.append(len(own))
            for piece in own:
                self._owners[piece].append(number)

    def largest(self, statement: str) -> tuple[float, str | None]:
        """Return largest share of an evaluation problem's own pieces that are in ``statement``, and that problem."""
        ours = pieces(statement, OVERLAP_WORDS).tolist()
        shared = Counter(number for piece in ours for number in self._owners.get(piece, ()))
        shares = ((count / self._sizes[number], self._names[number]) for number, count in shared.items())
        return max(shares, default=(0.0, None))
