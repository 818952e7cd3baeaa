"""Rules for problems whose tests call a function: with JSON and a result to compare, or from checks in Python.

`result_equal` is JSON equality: a tuple equals a list (at any depth; LiveCodeBench's checker knows only the outermost),
floats have no tolerance. Where NaN is expected NaN is right. With a `Tolerance` a number may also be near an expected
one that has a point or an exponent. The work is bounded by the size of the expected result, whatever came back. Checks
call the function from a process of their own, which compares: sandbox/checks/judge.py.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from oapl_core.sandbox import Execution, Program
from oapl_core.verdicts.outcomes import Outcome, failure
from oapl_core.verdicts.output_equality import Tolerance
from oapl_core.verdicts.rules import GradingRules

_MAX_INT_DIGITS = 4300  # Python's own limit: beyond it int() raises, as its time grows with the square
_CONSTANTS = {"NaN": object(), "Infinity": math.inf, "-Infinity": -math.inf}
"""A NaN that equals itself."""
_CHECKED = {
    "passed": Outcome.PASSED,
    "failed": Outcome.WRONG_ANSWER,
    "raised": Outcome.RUNTIME_ERROR,
    "not_judgeable": Outcome.NOT_JUDGEABLE,
    "gone": Outcome.WRONG_ANSWER,
}
"""`gone`: the program ended its process, in good order, before the checks had ended."""


@dataclass(frozen=True)
class FunctionRules(GradingRules):
    """Rules for tests of kind "function": arguments as JSON, and the value that is to be returned."""

    def program(self, source: str) -> Program:
        """Return the program that the sandbox runs."""
        return Program(source, self.entry_point, toolchain=self.toolchain)

    def output(self, execution: Execution) -> bytes | None:
        """Return the JSON of the returned value; None where it is none."""
        return execution.result

    def is_equal(self, output: bytes | None, expected: str) -> bool:
        """Compare a returned value with the expected one."""
        return result_equal(output, expected, self.tolerance)


@dataclass(frozen=True)
class CheckRules(GradingRules):
    """Rules for tests of kind "assert": checks in Python."""

    serves: ClassVar[tuple[str, ...]] = ("checks",)

    def program(self, source: str) -> Program:
        """Return the program that the sandbox runs, with the starter code that its checks may use."""
        return Program(source, self.entry_point, is_checked=True, starter=self.starter)

    def judge(self, execution: Execution, test: Mapping[str, str]) -> Outcome:
        """Return the word of the checks; what the program prints beside them is nobody's."""
        return failure(execution) or _CHECKED[execution.checks]


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
