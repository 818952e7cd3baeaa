"""Worked answers: chains of additions, subtractions and products, each of which an answer writes on a line of its own.

All is done modulo 10 (``DIGITS``) or 100 (``NUMBERS``). A problem gives the first number and its steps, each with a
letter; an answer has a line `a7*3=1` for each step and ends with the result in a box, which is what the verifier
compares. Every step has an inverse, so a number that is wrong once stays wrong, unless a second wrong line happens to
mend it. Everything is drawn from a seed, with the standard library alone; `beds.py` writes the sets.

What the base model does wrong with digits: in the made-up solutions that it is trained on, each line follows a wrong
habit with a probability of its operation (it counts one too few, or adds for a product); the lines after it continue
from there. Its likeliest answer is right. With numbers all solutions are right, and the base has not learnt all sums.
In ``HABITS`` every step of digits has a habit of its own strength, and the box holds the digits of all lines.
"""

from __future__ import annotations

import random
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
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
    wrong: Callable[[Step], float]
    """Probability that a made-up line follows the wrong habit."""
    every: bool = False
    """Whether the box holds the digits of all lines, one behind the other, and not the last number alone."""

    def result(self, numbers: Sequence[int]) -> str:
        """What the box holds, of the numbers of the lines."""
        return "".join(map(str, numbers)) if self.every else str(numbers[-1])

    def applied(self, step: Step, number: int, is_wrong: bool = False) -> int:
        """The number after a step; or what the habit makes of it, which is never the same."""
        operation, operand = step
        if operation == "*":
            return (number + operand if is_wrong else number * operand) % self.modulus
        # who counts the first one too, counts one too few
        counted = operand - is_wrong
        return (number + (counted if operation == "+" else -counted)) % self.modulus


def strength(step: Step) -> float:
    """How often a habit is followed that is as strong as the operand says, 0 to 60 %; the same on every machine."""
    return random.Random(f"habit {step[0]}{step[1]}").uniform(0, 0.6)


DIGITS = Kind(
    10,
    {"+": range(2, 10), "-": range(2, 10), "*": (3, 7, 9)},
    lambda step: {"+": 0.02, "-": 0.06, "*": 0.06}[step[0]],
)
NUMBERS = Kind(100, {"+": range(11, 30), "-": range(11, 30), "*": (3, 7, 9)}, lambda step: 0.0)
HABITS = replace(DIGITS, wrong=strength, every=True)


def answer(first: int, steps: Sequence[Step], wrong: Sequence[bool], kind: Kind = DIGITS) -> str:
    """A whole answer; `wrong` says which lines follow the habit."""
    numbers, lines = [first], []
    for letter, step, is_wrong in zip(LETTERS, steps, wrong, strict=False):
        after = kind.applied(step, numbers[-1], is_wrong)
        lines.append(f"{letter}{numbers[-1]}{step[0]}{step[1]}={after}")
        numbers.append(after)
    return "\n".join([*lines, f"\\boxed{{{kind.result(numbers[1:])}}}"])


def draw(rng: random.Random, length: int, kind: Kind = DIGITS) -> tuple[Row, tuple[int, list[Step]]]:
    """One problem without id and split, and what its solutions are made from."""
    first, operations = rng.randrange(kind.modulus), rng.choices(list(kind.operands), k=length)
    steps = [(operation, rng.choice(kind.operands[operation])) for operation in operations]
    numbers = [first]
    for step in steps:
        numbers.append(kind.applied(step, numbers[-1]))
    lines = [f"{letter}{operand}{operation}" for letter, (operation, operand) in zip(LETTERS, steps, strict=False)]
    row = {
        "kind": "math",
        "statement": "\n".join([f"Start: {first}", *lines]),
        "tests": [],
        "answer": kind.result(numbers[1:]),
        "structure": f"chain of {length}",
    }
    return row, (first, steps)


def shown(rng: random.Random, first: int, steps: Sequence[Step], kind: Kind = DIGITS) -> str:
    """A made-up solution."""
    return answer(first, steps, [rng.random() < kind.wrong(step) for step in steps], kind)
