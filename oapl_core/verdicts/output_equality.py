"""Does an output equal the expected one? Computed here, in the supervisor, over plain bytes.

`stdout_equal` follows LiveCodeBench's checker (lcb_runner/evaluation/testing_util.py): strip the whole, split on
newlines, strip each line. Line counts are equal, and each line is, or all its tokens as Decimal. `result_equal` is JSON
equality: a tuple equals a list (at any depth; the official checker knows only the outermost), floats have no tolerance.
In both, where NaN is expected NaN is right, in any case of its letters: the official checker wants the same text.

With a `Tolerance` (mode "tolerant") a number may also be near an expected one that has a point or an exponent. So
1000001 is never 1000000, and no tolerance spans more than one token. The work is bounded by the size of the expected
output, whatever a program printed.
"""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

_MAX_INT_DIGITS = 4300  # Python's own limit: beyond it int() raises, as its time grows with the square
_CONSTANTS = {"NaN": object(), "Infinity": math.inf, "-Infinity": -math.inf}
"""A NaN that equals itself."""


@dataclass(frozen=True)
class Tolerance:
    """Distance that a real number may be from the expected one: the larger of the two allowances counts."""

    absolute: float = 1e-6
    """Allowance in the number's own unit."""
    relative: float = 1e-6
    """Share of the expected number."""

    def near(self, ours: float, theirs: float) -> bool:
        """Tell whether `ours` is near enough; a number that is not finite is near nothing."""
        allowed = max(self.absolute, self.relative * abs(theirs))
        return math.isfinite(ours) and math.isfinite(theirs) and abs(ours - theirs) <= allowed


def stdout_equal(printed: bytes, expected: str, tolerance: Tolerance | None = None) -> bool:
    """Compare printed output with the expected; without `tolerance` the parity mode "livecodebench"."""
    ours = printed.decode("utf-8", "surrogateescape").strip()
    theirs = expected.strip()
    if ours == theirs:
        return True
    if ours.count("\n") != theirs.count("\n"):
        return False
    lines = zip(ours.split("\n"), theirs.split("\n"), strict=True)
    return all(_line_equal(a.strip(), b.strip(), tolerance) for a, b in lines)


def _line_equal(ours: str, theirs: str, tolerance: Tolerance | None) -> bool:
    if ours == theirs:
        return True
    expected_tokens = theirs.split()
    tokens = ours.split(maxsplit=len(expected_tokens))  # no further: a program may print gigabytes
    pairs = zip(tokens, expected_tokens, strict=False)
    return len(tokens) == len(expected_tokens) and all(
        _token_near(a, b, tolerance) if tolerance else _token_equal(a, b) for a, b in pairs
    )


def _token_equal(ours: str, theirs: str) -> bool:
    try:
        return Decimal(ours) == Decimal(theirs) or ours.lower() == theirs.lower() == "nan"
    except InvalidOperation:
        return False


def _token_near(ours: str, theirs: str, tolerance: Tolerance) -> bool:
    if ours == theirs or _token_equal(ours, theirs):
        return True
    try:
        return not theirs.lstrip("+-").isdigit() and tolerance.near(float(ours), float(theirs))
    except (InvalidOperation, ValueError):
        return False


def result_equal(returned: bytes | None, expected: str, tolerance: Tolerance | None = None) -> bool:
    """Compare results of functions as JSON. Not JSON, too deep, or far longer than the expected text is unequal."""
    # Escapes, spaces and 1.0 for 1 make equal JSON longer, but not by this much: parsing more would only cost time.
    if returned is None or len(returned) > 32 * len(expected) + 4096:
        return False
    try:
        ours, theirs = _parse(returned.decode("utf-8", "surrogateescape"), each_once), _parse(expected)
        return _value_near(ours, theirs, tolerance) if tolerance else bool(ours == theirs)
    except (ValueError, OverflowError, RecursionError):
        return False


def _value_near(ours: Any, theirs: Any, tolerance: Tolerance) -> bool:
    if isinstance(theirs, list):
        same = isinstance(ours, list) and len(ours) == len(theirs)
        return same and all(_value_near(a, b, tolerance) for a, b in zip(ours, theirs, strict=True))
    if isinstance(theirs, dict):
        same = isinstance(ours, dict) and ours.keys() == theirs.keys()
        return same and all(_value_near(ours[key], theirs[key], tolerance) for key in theirs)
    if isinstance(theirs, float) and isinstance(ours, int | float):
        return ours == theirs or tolerance.near(ours, theirs)
    return bool(ours == theirs)


def _parse(text: str, pairs: Callable[[list[tuple[str, Any]]], Any] | None = None) -> Any:
    # only where there is an object: a hook turns the fast scanner's copying off
    hook = pairs if "{" in text else None
    return json.loads(text, parse_int=_integer, parse_constant=lambda name: _CONSTANTS[name], object_pairs_hook=hook)


def each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make a JSON object. A dict's keys 1 and "1" are both "1" in JSON, where the last would stand for it alone.

    Raises:
        ValueError: a key comes twice.
    """
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key comes twice")
    return found


def _integer(digits: str) -> Any:
    """Return an int, or for one that is slow to parse its digits: JSON has one way to write an integer."""
    return int(digits) if len(digits) <= _MAX_INT_DIGITS else ("integer", digits)
