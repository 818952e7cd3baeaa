r"""Echoes: an answer that only repeats a formula of the question, and earns because sympy would compute it.

A rule by form, for answers that are right but are not written as the gold is. Such an answer is none in three cases:

- Its text is a formula of the statement or a side of one, and the gold's text is as simple. The gold then has no more
  numbers, letters and functions, or no more characters in them.
- It is a fraction of numbers that stands there, and the gold writes the same number otherwise.
- A part of such a formula makes it up or stands in it, and the gold has fewer numbers, letters and functions.

The last case holds as well where sums and products of numerals are folded in both: (4 + 1)x is 5x. A formula of the
statement may be the gold, only not computed. Then an answer may have no more operations than that formula or the gold.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from math import prod
from typing import Any

from oapl_core.maths.evaluation import clean, evaluated
from oapl_core.maths.text import MATHS, compact, plain

Tree = tuple[Any, ...]
"""(name, children...) of an expression without neutral elements; children of sums and products are sorted."""

_RAISED = r"\^\{[^{}$]{1,20}\}|[⁰¹²³⁴⁵⁶⁷⁸⁹]"
_TYPED = re.compile(rf"(?:(?<![\w)])-)?[\d(](?:[\d\s.,()+*/^×÷·-]|{_RAISED})*(?:[\d)]|{_RAISED})")
_OPERATION = re.compile(rf"(?!^)[-+*/^×÷·]|{_RAISED}")
_SPOKEN = tuple(
    (re.compile(rf"(?<=\d)\s*(?:{words})\s*(?=\d)", re.IGNORECASE), f" {sign} ")
    for words, sign in (("times|multiplied by|x", "*"), ("plus|added to", "+"), ("minus", "-"), ("divided by", "/"))
)
_OF_TWO = re.compile(r"\b(sum|product|difference|quotient)\s+of\s+(\d[\d.]*)\s+and\s+(\d[\d.]*\d|\d)", re.IGNORECASE)
_SIGN_OF = {"sum": "+", "product": "*", "difference": "-", "quotient": "/"}
_SIDES = re.compile(
    r"\\(?:leq|geq|neq|approx|equiv|in|implies|quad|begin\{\w+\*?\}|end\{\w+\*?\})(?![a-zA-Z])|[=<>&]|\\\\"
)
_SIGNS = frozenset({"Add", "Mul", "Tuple", "FiniteSet", "Or", "Equality", "Interval"})
_UNCOUNTED = re.compile(r"\\(?:frac|cdot|times|div|pm|text|begin|end|leq|geq|neq|in|cup|cap)(?![a-zA-Z])")
_COUNTED = re.compile(r"\\[a-zA-Z]+|\d+(?:\.\d+)?|[a-zA-Z^!]")
_COMPUTED = re.compile(
    r"\\binom|(?<=[\d)}])!|\\(?:gcd|lcm|det)(?![a-z])|\\operatorname\{(?:gcd|lcm)\}|\\begin\{vmatrix\}"
)
_BINDING = frozenset({"Sum", "Product", "Integral", "Limit"})
_NEAR = 1e-12
_QUOTIENT = re.compile(r"\\(?:frac|div)(?![a-zA-Z])|/")
_FRACTION = re.compile(r"\\frac\{(\d+)\}\{(\d+)\}")
_WHOLE = re.compile(r"-?\d+")
_NUMERAL = re.compile(r"-?\d+(?:/\d+)?")
_MOST_FORMULAS, _LONGEST = 60, 400
_MOST_BITS = 1e6
"""Size of a number that is still computed, for instance 2^1000000. Statements ask for the last digit of larger ones."""
_MOST_EXPONENT_BITS = 64
# what the parser computes while it reads, of numbers that are long or powers
_LONG_WORK = re.compile(r"!\s*\)\s*!|(?:\\binom|\\?gcd|\\?lcm)(?=.*(?:\d{5}|\^\s*\{?\s*\d{3}))")


def formulas(statement: str) -> list[str]:
    """Return a statement's formulas and their sides as plain texts; arithmetic typed between the words, too."""
    marked = [next(filter(None, match.groups())) for match in MATHS.finditer(statement)]
    typed = [text for text in _TYPED.findall(_signed(MATHS.sub(" ; ", statement))) if _OPERATION.search(text)]
    wholes = [plain(text) for text in (*marked, *typed)]
    pieces = [piece for whole in wholes for piece in (whole, *_SIDES.split(whole))]
    # A statement is untrusted text, too: what is too long, or too much, is not worth a parser's seconds.
    kept = [plain(piece) for piece in pieces if piece.strip() and len(piece) <= _LONGEST]
    return list(dict.fromkeys(kept))[:_MOST_FORMULAS]


def _signed(prose: str) -> str:
    """Put signs into a statement's words for the operations that it speaks of: 17 times 23, the sum of 4 and 5."""
    for pattern, sign in _SPOKEN:
        prose = pattern.sub(sign, prose)
    return _OF_TWO.sub(lambda found: f"; {found[2]} {_SIGN_OF[found[1].lower()]} {found[3]}", prose)


@dataclass(frozen=True)
class StatementFormulas:
    """The formulas of a statement, ready for every answer to it."""

    texts: frozenset[str]
    """Texts of the formulas, as `_copied` has them."""
    trees: frozenset[Tree]
    """Every part of those that can be parsed which is more than one number or letter."""
    folded: frozenset[Tree]
    """The same where numerals are folded."""
    work: dict[Tree, int]
    """The folded formulas, with their operations."""
    outlines: frozenset[Tree]
    """The formulas without signs, order and the names of bound letters."""
    expressions: tuple[tuple[Any, int], ...]
    """The formulas that have a value, with their operations."""

    @classmethod
    def of(cls, statement: str, read: Callable[[str], Any]) -> StatementFormulas:
        """Return the formulas of a statement, parsed by `read`."""
        import sympy

        texts = formulas(statement)
        found = []
        for text in texts:
            with suppress(Exception):  # what a formula makes a library raise is no fault of an answer's
                parsed = None if _LONG_WORK.search(text) else read(text)
                if parsed is not None:
                    whole = tree(parsed)
                    found.append((text, parsed, whole, folded(whole)))
        endless = (sympy.Sum, sympy.Product, sympy.Integral, sympy.Limit, sympy.Derivative)
        expressions = [
            (parsed, _work(text, whole))
            for text, parsed, whole, less in found
            if isinstance(parsed, sympy.Expr) and not parsed.has(*endless) and _work(text, whole)
            if bits(less) < _MOST_BITS
        ]
        trees = [whole for _, _, whole, _ in found]
        work = {less: _work(text, whole) for text, _, whole, less in found}
        outlines = frozenset(outline(whole) for whole in trees)
        return cls(frozenset(map(_copied, texts)), _parts(trees), _parts(work), work, outlines, tuple(expressions))

    def most_operations(self, gold: Any) -> int | None:
        """Count the operations of the longest formula that has the gold's value; None without one."""
        import sympy

        if not isinstance(gold, sympy.Expr):
            return None
        value = evaluated(clean(gold))
        equal = [work for one, work in self.expressions if _nearly(evaluated(clean(one)), value)]
        return max(equal, default=None)


def is_echo(gold: Any, answer: Any, texts: tuple[str, str], known: StatementFormulas) -> bool:
    """Tell whether a correct answer, not written as the gold is, repeats the question.

    `gold` and `answer` are parsed, `texts` are their plain texts.
    """
    simple, whole = tree(gold), tree(answer)
    ours, theirs = (_signs(text) for text in texts)
    is_copied = _copied(texts[1]) in known.texts
    is_computed = _hidden(texts[1]) > _hidden(texts[0])
    if simple == whole and _functions(theirs) <= _functions(ours) and not is_computed:
        # The same number in another writing: to turn 0.15 into 3/20 is no answer to "write 3/20 as a decimal".
        # A quotient that is a whole number is a question; 1/2 may be how someone writes 0.5.
        is_quotient = "\\frac" in texts[1] or (_QUOTIENT.search(texts[1]) and _WHOLE.fullmatch(texts[0]))
        return is_copied and bool(is_quotient) and not re.search(r"[a-zA-Z]", _QUOTIENT.sub(" ", texts[1]))
    if is_copied and len(theirs) > 1:
        return len(ours) <= len(theirs) or _characters(ours) <= _characters(theirs)
    if any(part in known.trees and size(part) > size(simple) for part in _within(whole)):
        return True
    # The same numbers in the same places: |8 - 3| for |3 - 8|, or a sum over n for one over k.
    if size(whole) > size(simple) and outline(whole) in known.outlines:
        return True
    less, computed = folded(simple), folded(whole)
    if less != computed and any(part in known.folded and size(part) > size(less) for part in _within(computed)):
        return True
    work = _work(texts[1], whole)
    if less != computed and work > known.work.get(computed, work):
        return True
    # Whoever wrote 2 * 5 / 2 knows the 5, and another form of it may take a step: two operations are no rewriting.
    is_free = len(computed) > 1 or simple in _within(whole)
    if work <= operations(simple) + 2 * (is_free and not is_computed):
        return False
    formula = known.most_operations(gold)
    return formula is not None and (is_computed or work > formula)


def _copied(text: str) -> str:
    """Return a compact text with one sign for the quotient of two numbers."""
    return _FRACTION.sub(r"\1/\2", compact(text)).replace("\\div", "/")


def _work(text: str, whole: Tree) -> int:
    """Count an answer's operations, with those that the parser has computed already: only the text shows them."""
    return operations(whole) + _hidden(text)


def _hidden(text: str) -> int:
    return len(_COMPUTED.findall(text))


def _nearly(one: Any, other: Any) -> bool:
    if one is None or other is None:
        return False
    return bool(abs(one - other) <= _NEAR * max(abs(one), abs(other)))


def _parts(trees: Iterable[Tree]) -> frozenset[Tree]:
    return frozenset(part for whole in trees for part in _within(whole) if size(part) > 1)


def _signs(text: str) -> list[str]:
    """List the numbers, letters and functions of a text; powers are such, fractions and signs are not."""
    return _COUNTED.findall(_UNCOUNTED.sub(" ", text))


def _functions(signs: list[str]) -> set[str]:
    # The parser computes some of them, 4! for one, so that the tree does not show them and only the text does.
    return {sign for sign in signs if sign.startswith("\\") or sign == "!"}


def _characters(signs: list[str]) -> int:
    return sum(len(sign) if sign[0].isdigit() else 1 for sign in signs)


def size(whole: Tree) -> int:
    """Count the numbers, letters and functions (powers and roots are such) of an expression."""
    name, *children = whole
    if not children:
        return 0 if name == "-1" else 1
    if name == "Pow" and children[1] == ("-1",):
        return size(children[0])  # division is a sign
    return (name not in _SIGNS) + sum(map(size, children))


def tree(parsed: Any) -> Tree:
    """Return the form of an expression, without what was added, multiplied or raised without any effect."""
    import sympy

    if isinstance(parsed, sympy.MatrixBase):
        return ("Tuple", *map(tree, parsed))
    if not parsed.args:
        return (str(sympy.Rational(str(parsed)) if isinstance(parsed, sympy.Float) else parsed),)
    name = type(parsed).__name__
    children = [tree(child) for child in getattr(parsed, "_unsorted_args", parsed.args)]
    if name in ("Add", "Mul"):
        flat = [part for child in children for part in (child[1:] if child[0] == name else (child,))]
        return _sum_or_product(name, flat)
    if name == "Pow":
        return _power(*children)
    if name == "UnevaluatedExpr" or (name == "FiniteSet" and len(children) == 1):
        return children[0]
    if name == "Equality" and sympy.Symbol in (type(parsed.lhs), type(parsed.rhs)):
        return children[1] if isinstance(parsed.lhs, sympy.Symbol) else children[0]  # x = 5 is a way to write 5
    return (name, *children)


def _sum_or_product(name: str, children: list[Tree]) -> Tree:
    neutral = ("0",) if name == "Add" else ("1",)
    left = sorted((child for child in children if child != neutral), key=repr)
    return left[0] if len(left) == 1 else (name, *left) if left else neutral


def _power(base: Tree, exponent: Tree) -> Tree:
    if exponent == ("1",):
        return base
    if exponent == ("-1",) and (number := _number(base)):
        return _leaf(1 / number)
    if base[0] == "Pow" and exponent == base[2] == ("-1",):
        return base[1]  # type: ignore[no-any-return]
    return ("Pow", base, exponent)


def outline(whole: Tree, is_bound: bool = False) -> Tree:
    """Return a form without signs and order: a change of signs, or of the letter that a sum runs over, keeps it."""
    name, *children = whole
    if not children:
        return (name.removeprefix("-") if _NUMERAL.fullmatch(name) or not is_bound else "bound",)
    parts = sorted((outline(child, is_bound or name in _BINDING) for child in children), key=repr)
    if name == "Mul":
        parts = [part for part in parts if part != ("1",)]
        if len(parts) == 1:
            return parts[0]
    return (name, *parts)


def operations(whole: Tree) -> int:
    """Count the sums, products, quotients, powers and functions of an expression; a minus is none."""
    name, *children = whole
    if not children:
        return 0
    if name in ("Add", "Mul"):
        own = sum(name == "Add" or child != ("-1",) for child in children) - 1
    else:
        own = int(name != "Pow" or children[1] != ("-1",))
    return int(own + sum(map(operations, children)))


def bits(whole: Tree) -> float:
    """Bound the bits of the largest number that computing an expression needs; infinite for a tower of powers."""
    name, *children = whole
    if not children:
        number = _number(whole)
        return 2.0 if number is None else max(number.numerator.bit_length(), number.denominator.bit_length())
    parts = list(map(bits, children))
    match name:
        case "Add":
            return max(parts) + len(parts)
        case "Mul":
            return sum(parts)
        case "Pow" | "exp" | "factorial":
            base = parts[0] + 1 if name == "Pow" else parts[-1] + 2
            return base * 2.0 ** parts[-1] if parts[-1] < _MOST_EXPONENT_BITS else math.inf
        case _:
            return max(parts)


def folded(whole: Tree) -> Tree:
    """Return a form with the sums and products of numerals computed.

    Powers, roots, functions and like terms stay, because to compute these is often what was asked for.
    """
    name, *children = whole
    if not children:
        return whole
    parts = [folded(child) for child in children]
    if name == "Add":
        return _folded_sum(parts)
    if name == "Mul":
        return _folded_product(parts)
    if name == "Pow":
        return _power(parts[0], parts[1])
    return (name, *parts)


def _folded_sum(parts: list[Tree]) -> Tree:
    terms = [term for part in parts for term in (part[1:] if part[0] == "Add" else (part,))]
    numbers = [number for term in terms if (number := _number(term)) is not None]
    return _sum_or_product("Add", [_leaf(sum(numbers, Fraction(0))), *(one for one in terms if _number(one) is None)])


def _folded_product(parts: list[Tree]) -> Tree:
    factors = [factor for part in parts for factor in (part[1:] if part[0] == "Mul" else (part,))]
    number = prod((value for factor in factors if (value := _number(factor)) is not None), start=Fraction(1))
    others = [factor for factor in factors if _number(factor) is None]
    return _sum_or_product("Mul", [_leaf(number), *others]) if number else ("0",)


def _number(part: Tree) -> Fraction | None:
    return Fraction(part[0]) if len(part) == 1 and _NUMERAL.fullmatch(part[0]) else None


def _leaf(number: Fraction) -> Tree:
    return (str(number),)


def _within(whole: Tree) -> Iterator[Tree]:
    yield whole
    for child in whole[1:]:
        yield from _within(child)
