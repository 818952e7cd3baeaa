"""Worked answers: chains of additions, subtractions and products, each of which an answer writes on a line of its own.

All is done modulo 10. A problem gives the first digit and its steps, each with a letter; an answer has a line
`a7*3=1` for each step and ends with the result in a box, which is what the verifier compares. Every step has an
inverse, so a digit that is wrong once stays wrong, unless a second wrong line happens to mend it. Everything is drawn
from a seed, with the standard library alone; `beds.py` writes the sets.

What the base model does wrong: in the made-up solutions that it is trained on, each line follows a wrong habit with a
probability of its operation (it counts one too few, or adds for a product); the lines after it continue from there.
"""

from __future__ import annotations

import random
import string
from collections.abc import Sequence
from typing import Any

Row = dict[str, Any]
Step = tuple[str, int]
"""Operation and operand."""

LETTERS = string.ascii_lowercase + string.ascii_uppercase
"""Names of the steps, so that a line can be found in the problem."""
DIGITS = {"+": range(2, 10), "-": range(2, 10), "*": (3, 7, 9)}
"""Operands. Only these digits have an inverse modulo 10."""
WRONG = {"+": 0.02, "-": 0.06, "*": 0.06}
"""Probability that a made-up line follows the wrong habit."""


def applied(step: Step, digit: int, is_wrong: bool = False) -> int:
    """The digit after a step; or what the habit makes of it, which is never the same."""
    operation, operand = step
    if operation == "*":
        return (digit + operand if is_wrong else digit * operand) % 10
    # who counts the first one too, counts one too few
    counted = operand - is_wrong
    return (digit + (counted if operation == "+" else -counted)) % 10


def answer(first: int, steps: Sequence[Step], wrong: Sequence[bool]) -> str:
    """A whole answer; `wrong` says which lines follow the habit."""
    digit, lines = first, []
    for letter, step, is_wrong in zip(LETTERS, steps, wrong, strict=False):
        after = applied(step, digit, is_wrong)
        lines.append(f"{letter}{digit}{step[0]}{step[1]}={after}")
        digit = after
    return "\n".join([*lines, f"\\boxed{{{digit}}}"])


def draw(rng: random.Random, length: int) -> tuple[Row, tuple[int, list[Step]]]:
    """One problem without id and split, and what its solutions are made from."""
    first, operations = rng.randrange(10), rng.choices(list(DIGITS), k=length)
    steps = [(operation, rng.choice(DIGITS[operation])) for operation in operations]
    digit = first
    for step in steps:
        digit = applied(step, digit)
    lines = [f"{letter}{operand}{operation}" for letter, (operation, operand) in zip(LETTERS, steps, strict=False)]
    row = {
        "kind": "math",
        "statement": "\n".join([f"Start: {first}", *lines]),
        "tests": [],
        "answer": str(digit),
        "structure": f"chain of {length}",
    }
    return row, (first, steps)


def shown(rng: random.Random, first: int, steps: Sequence[Step]) -> str:
    """A made-up solution."""
    return answer(first, steps, [rng.random() < WRONG[operation] for operation, _ in steps])
