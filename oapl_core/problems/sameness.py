"""Sameness of statements: the same words in order, whatever their case, spaces and line breaks. Pure."""

import hashlib
import re

_WORD = re.compile(r"\w+|[^\w\s]")


def words(text: str) -> list[str]:
    """Split a text into words and marks, in lower case."""
    return _WORD.findall(text.casefold())


def same(text: str) -> str:
    """Return a hash of the words in order, which equal statements have in common."""
    return hashlib.blake2b(" ".join(words(text)).encode(), digest_size=16).hexdigest()
