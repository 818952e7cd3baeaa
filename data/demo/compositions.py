"""Maths of the demo's problem set: compositions of small functions, answered by copying symbols.

Reads nothing, writes nothing. A problem defines f, g and perhaps h, and asks for their composition. The made-up
solutions substitute without simplifying; the gold answer is the expanded polynomial, so grading needs real symbolic
equality. Habits: the order of composition reversed, a sign flipped, a product read as a sum, a power read as a product,
a quotient read as a product, a difference turned round.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

Polynomial = tuple[Fraction, ...]
"""Coefficients, constant term first."""

# name: (definition, what a solution appends to the inner expression, what the wrong habit appends)
_TEXTS = {
    "add": ("x + {k}", " + {k}", " - {k}"),
    "subtract": ("x - {k}", " - {k}", " + {k}"),
    "multiply": ("{k}x", "*{k}", " + {k}"),
    "divide": ("x/{k}", "/{k}", "*{k}"),
    "power": ("x^{k}", "^{k}", "*{k}"),
    "minus": ("{k} - x", "*(-1) + {k}", " - {k}"),
}
P_RIGHT = {"add": 0.95, "subtract": 0.6, "multiply": 0.9, "divide": 0.75, "power": 0.25, "minus": 0.35}
"""Per kind of function: the share of made-up solutions that apply it rightly."""
P_ORDER = 0.8
"""The share that composes the functions in the right order."""


@dataclass(frozen=True)
class Function:
    """One of x + k, x - k, k x, x / k, x^k, k - x."""

    name: str
    k: int

    def definition(self) -> str:
        """The right-hand side shown in the problem."""
        return _TEXTS[self.name][0].format(k=self.k)

    def suffix(self, habit: int = 0) -> str:
        """What applying it appends: habit 0 is right, 1 wrong."""
        return _TEXTS[self.name][1 + habit].format(k=self.k)


def statement(functions: Sequence[Function]) -> str:
    """The problem as the model is shown it; `functions` are named f, g, h and applied in this order."""
    letters = "fgh"[: len(functions)]
    lines = [f"{letter}(x) = {function.definition()}" for letter, function in zip(letters, functions, strict=True)]
    asked = "(".join(reversed(letters)) + "(x" + ")" * len(letters)
    return "\n".join(["Let", *lines, f"Find {asked}"])


def text(functions: Sequence[Function], habits: Sequence[int]) -> str:
    """What a solution writes: habits[0] = 1 reverses the order, habits[i] = 1 gets the i-th function wrong."""
    applied = list(zip(functions, habits[1:], strict=True))
    if habits[0]:
        applied.reverse()
    return "(" * (len(applied) - 1) + "x" + ")".join(function.suffix(habit) for function, habit in applied)


def answer(functions: Sequence[Function], habits: Sequence[int]) -> str:
    """A whole solution, as the verifier expects it."""
    return f"\\boxed{{{text(functions, habits)}}}"


def expanded(functions: Sequence[Function]) -> str:
    """The gold answer: the composition as an expanded polynomial in LaTeX, highest power first."""
    inner: Polynomial = (Fraction(0), Fraction(1))
    for function in functions:
        inner = _apply(function, inner)
    return _written(inner)


def _apply(function: Function, inner: Polynomial) -> Polynomial:
    k = function.k
    if function.name == "power":
        product = inner
        for _ in range(k - 1):
            product = _multiply(product, inner)
        return product
    if function.name in ("multiply", "divide"):
        return tuple(c * k if function.name == "multiply" else c / k for c in inner)
    if function.name == "minus":
        return (k - inner[0], *(-c for c in inner[1:]))
    return (inner[0] + (k if function.name == "add" else -k), *inner[1:])


def values(expression: str) -> tuple[Fraction, ...]:
    """A solution's expression at x = 0..9: two polynomials of degree below 10 are equal where these are."""
    python = re.sub(r"(\d+)", r"Fraction(\1)", expression).replace("^", "**")
    return tuple(Fraction(eval(python, {"x": Fraction(x), "Fraction": Fraction})) for x in range(10))  # text made above


def draw(rng: random.Random, n_functions: int) -> tuple[Function, ...] | None:
    """Different functions, in which every single wrong habit changes the answer; None if one would be invisible."""
    names = rng.sample(sorted(P_RIGHT), n_functions)
    functions = tuple(Function(name, rng.randint(2, 3 if name == "power" else 9)) for name in names)
    gold = values(text(functions, [0] * (n_functions + 1)))
    for fault in range(n_functions + 1):
        if values(text(functions, [int(at == fault) for at in range(n_functions + 1)])) == gold:
            return None
    return functions


def draw_answer(rng: random.Random, _kind: str, functions: Sequence[Function]) -> str:
    """One made-up solution: the order and each function right with their own probabilities."""
    p_right = (P_ORDER, *(P_RIGHT[function.name] for function in functions))
    return answer(functions, [int(rng.random() >= p) for p in p_right])


def _multiply(a: Polynomial, b: Polynomial) -> Polynomial:
    product = [Fraction(0)] * (len(a) + len(b) - 1)
    for i, left in enumerate(a):
        for j, right in enumerate(b):
            product[i + j] += left * right
    return tuple(product)


def _written(polynomial: Polynomial) -> str:
    written = ""
    for power, coefficient in reversed(list(enumerate(polynomial))):
        if coefficient == 0:
            continue
        size = abs(coefficient)
        number = str(size) if size.denominator == 1 else f"\\frac{{{size.numerator}}}{{{size.denominator}}}"
        variable = "" if power == 0 else "x" if power == 1 else f"x^{power}"
        sign = ("-" if coefficient < 0 else "") if not written else (" - " if coefficient < 0 else " + ")
        written += sign + (variable if variable and size == 1 else number + variable)
    return written
