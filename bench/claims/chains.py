"""Worked answers: chains of additions, subtractions and products, each of which an answer writes on a line of its own.

All is done modulo 10 (``DIGITS``) or 100 (``NUMBERS``). A problem gives the first number and its steps, each with a
letter; an answer has a line `a7*3=1` for each step and ends with the result in a box, which is what the verifier
compares. Every step has an inverse, so a number that is wrong once stays wrong, unless a second wrong line happens to
mend it. Everything is drawn from a seed, with the standard library alone; `beds.py` writes the sets.

What the base model does wrong with digits: in the made-up solutions that it is trained on, each line follows a wrong
habit with a probability of its operation (it counts one too few, or adds for a product); the lines after it continue
from there. Its likeliest answer is right. With numbers all solutions are right, and the base has not learnt all sums.
"""

from __future__ import annotations

import random
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Row = dict[str, Any]
Step = tuple[str, int]
"""Operation and operand."""

LETTERS = string.ascii_lowercase + string.ascii_uppercase
"""Names of the steps, so that a line can be found in the problem."""


@dataclass(frozen=True)
class Kind:
    """Of chains: what is computed with."""

    modulus: int
    operands: Mapping[str, Sequence[int]]
    """By operation. Factors have an inverse modulo 10 and 100."""
    wrong: Mapping[str, float]
    """Probability that a made-up line follows the wrong habit."""

    def applied(self, step: Step, number: int, is_wrong: bool = False) -> int:
        """The number after a step; or what the habit makes of it, which is never the same."""
        operation, operand = step
        if operation == "*":
            return (number + operand if is_wrong else number * operand) % self.modulus
        # who counts the first one too, counts one too few
        counted = operand - is_wrong
        return (number + (counted if operation == "+" else -counted)) % self.modulus


DIGITS = Kind(10, {"+": range(2, 10), "-": range(2, 10), "*": (3, 7, 9)}, {"+": 0.02, "-": 0.06, "*": 0.06})
NUMBERS = Kind(100, {"+": range(11, 30), "-": range(11, 30), "*": (3, 7, 9)}, {"+": 0.0, "-": 0.0, "*": 0.0})


def answer(first: int, steps: Sequence[Step], wrong: Sequence[bool], kind: Kind = DIGITS) -> str:
    """A whole answer; `wrong` says which lines follow the habit."""
    number, lines = first, []
    for letter, step, is_wrong in zip(LETTERS, steps, wrong, strict=False):
        after = kind.applied(step, number, is_wrong)
        lines.append(f"{letter}{number}{step[0]}{step[1]}={after}")
        number = after
    return "\n".join([*lines, f"\\boxed{{{number}}}"])


def draw(rng: random.Random, length: int, kind: Kind = DIGITS) -> tuple[Row, tuple[int, list[Step]]]:
    """One problem without id and split, and what its solutions are made from."""
    first, operations = rng.randrange(kind.modulus), rng.choices(list(kind.operands), k=length)
    steps = [(operation, rng.choice(kind.operands[operation])) for operation in operations]
    number = first
    for step in steps:
        number = kind.applied(step, number)
    lines = [f"{letter}{operand}{operation}" for letter, (operation, operand) in zip(LETTERS, steps, strict=False)]
    row = {
        "kind": "math",
        "statement": "\n".join([f"Start: {first}", *lines]),
        "tests": [],
        "answer": str(number),
        "structure": f"chain of {length}",
    }
    return row, (first, steps)


def shown(rng: random.Random, first: int, steps: Sequence[Step], kind: Kind = DIGITS) -> str:
    """A made-up solution."""
    return answer(first, steps, [rng.random() < kind.wrong[operation] for operation, _ in steps], kind)
