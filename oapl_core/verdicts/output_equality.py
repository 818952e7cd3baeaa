"""Does an output equal the expected one? Computed here, in the supervisor, over plain bytes.

`stdout_equal` follows LiveCodeBench's checker (lcb_runner/evaluation/testing_util.py): strip the whole, split on
newlines, strip each line. Line counts are equal, and each line is, or all its tokens as Decimal. Where NaN is expected
NaN is right, in any case of its letters: the official checker wants the same text. Returned values:
called_functions.py.

With a `Tolerance` (mode "tolerant") a number may also be near an expected one that has a point or an exponent. So
1000001 is never 1000000, and no tolerance spans more than one token. The work is bounded by the size of the expected
output, whatever a program printed.
"""

import math
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation


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
