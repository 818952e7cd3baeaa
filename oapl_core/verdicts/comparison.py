"""Does an output equal the expected one? Computed here, in the supervisor, over plain bytes.

`stdout_equal` follows LiveCodeBench's checker (lcb_runner/evaluation/testing_util.py): strip the whole, split on
newlines, strip each line, equal line counts, each line equal or all its tokens equal as Decimal. `result_equal` is JSON
equality: a tuple equals a list (at any depth; the official checker knows only the outermost), floats have no tolerance.
The work is bounded by the size of the expected output, whatever a program printed.
"""

import json
from decimal import Decimal, InvalidOperation
from typing import Any

_MAX_INT_DIGITS = 4300


def stdout_equal(printed: bytes, expected: str) -> bool:
    """Parity mode "livecodebench" for programs with standard input and output."""
    ours = printed.decode("utf-8", "surrogateescape").strip()
    theirs = expected.strip()
    if ours == theirs:
        return True
    if ours.count("\n") != theirs.count("\n"):
        return False
    return all(_line_equal(a.strip(), b.strip()) for a, b in zip(ours.split("\n"), theirs.split("\n"), strict=True))


def _line_equal(ours: str, theirs: str) -> bool:
    if ours == theirs:
        return True
    expected_tokens = theirs.split()
    tokens = ours.split(maxsplit=len(expected_tokens))
    if len(tokens) != len(expected_tokens):
        return False
    try:
        return all(Decimal(a) == Decimal(b) for a, b in zip(tokens, expected_tokens, strict=True))
    except InvalidOperation:
        return False


def result_equal(returned: bytes | None, expected: str) -> bool:
    """JSON equality for functions. Not JSON, too deep, or far longer than the expected text is unequal."""
    if returned is None or len(returned) > 32 * len(expected) + 4096:
        return False
    try:
        return bool(_parse(returned.decode("utf-8", "surrogateescape")) == _parse(expected))
    except (ValueError, RecursionError):
        return False


def _parse(text: str) -> Any:
    return json.loads(text, parse_int=_integer)


def _integer(digits: str) -> Any:
    """An int, or for one that is slow to parse its digits: JSON has one way to write an integer."""
    return int(digits) if len(digits) <= _MAX_INT_DIGITS else ("integer", digits)
