r"""Echoes: an answer that only repeats a formula of the question, and earns because sympy would compute it.

A rule by form, for answers that are right but are not written as the gold is. Such an answer is no answer if

- its text is a formula of the statement or a side of one, and the gold's text is as simple: it has no more numbers,
  letters and functions, or no more characters in them;
- or it is a fraction of numbers that stands there, and the gold writes the same number otherwise;
- or a part of such a formula makes it up or stands in it, and the gold has fewer numbers, letters and functions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from oapl_core.verdicts.maths_text import compact, plain

Tree = tuple[Any, ...]
"""(name, children...) of an expression without neutral elements; children of sums and products are sorted."""

_MATHS = re.compile(
    r"(?<!\\)\$\$(.+?)(?<!\\)\$\$|(?<!\\)\$(.+?)(?<!\\)\$|\\\[(.+?)\\\]|\\\((.+?)\\\)"
    r"|\\begin\{(?:align|equation|gather)\w*\*?\}(.+?)\\end\{(?:align|equation|gather)\w*\*?\}",
    re.DOTALL,
)
_TYPED = re.compile(r"[\d(][\d\s.,()+*/^×÷·-]*[\d)]")
_SIDES = re.compile(
    r"\\(?:leq|geq|neq|approx|equiv|in|implies|quad|begin\{\w+\*?\}|end\{\w+\*?\})(?![a-zA-Z])|[=<>&]|\\\\"
)
_SIGNS = frozenset({"Add", "Mul", "Tuple", "FiniteSet", "Equality", "Interval"})
_UNCOUNTED = re.compile(r"\\(?:frac|cdot|times|div|pm|text|begin|end|leq|geq|neq|in|cup|cap)(?![a-zA-Z])")
_COUNTED = re.compile(r"\\[a-zA-Z]+|\d+(?:\.\d+)?|[a-zA-Z^!]")
_MOST_FORMULAS, _LONGEST = 60, 400


def formulas(statement: str) -> list[str]:
    """The formulas of a statement and their sides as plain texts; arithmetic that is typed between the words, too."""
    marked = [next(filter(None, match.groups())) for match in _MATHS.finditer(statement)]
    typed = [text for text in _TYPED.findall(_MATHS.sub(" ; ", statement)) if re.search(r"[-+*/^×÷·]", text)]
    wholes = [plain(text) for text in (*marked, *typed)]
    pieces = [piece for whole in wholes for piece in (whole, *_SIDES.split(whole))]
    # A statement is untrusted text, too: what is too long, or too much, is not worth a parser's seconds.
    kept = [plain(piece) for piece in pieces if piece.strip() and len(piece) <= _LONGEST]
    return list(dict.fromkeys(kept))[:_MOST_FORMULAS]


def is_echo(gold: Any, answer: Any, texts: tuple[str, str], known: frozenset[str], trees: frozenset[Tree]) -> bool:
    """Whether a correct answer, not written as the gold is, repeats the question.

    `gold` and `answer` are parsed, `texts` are their plain texts, `known` the statement's `formulas` made compact,
    `trees` the `parts` of those.
    """
    simple, whole = tree(gold), tree(answer)
    ours, theirs = (_signs(text) for text in texts)
    is_copied = compact(texts[1]) in known
    if simple == whole and _functions(theirs) <= _functions(ours):
        # The same number in another writing: to turn 0.15 into 3/20 is no answer to "write 3/20 as a decimal".
        return is_copied and "\\frac" in texts[1] and not re.search(r"[a-zA-Z]", texts[1].replace("\\frac", ""))
    if is_copied and len(theirs) > 1:
        return len(ours) <= len(theirs) or _characters(ours) <= _characters(theirs)
    return any(part in trees and size(part) > size(simple) for part in _within(whole))


def parts(known: list[str], read: Callable[[str], Any]) -> frozenset[Tree]:
    """Every part of the formulas that can be parsed which is more than one number or letter."""
    trees = [tree(parsed) for parsed in map(read, known) if parsed is not None]
    return frozenset(part for whole in trees for part in _within(whole) if size(part) > 1)


def _signs(text: str) -> list[str]:
    """The numbers, letters and functions of a text; powers are such, fractions and signs are not."""
    return _COUNTED.findall(_UNCOUNTED.sub(" ", text))


def _functions(signs: list[str]) -> set[str]:
    # The parser computes some of them, 4! for one, so that the tree does not show them and only the text does.
    return {sign for sign in signs if sign.startswith("\\") or sign == "!"}


def _characters(signs: list[str]) -> int:
    return sum(len(sign) if sign[0].isdigit() else 1 for sign in signs)


def size(whole: Tree) -> int:
    """How many numbers, letters and functions (powers and roots are such) an expression holds."""
    name, *children = whole
    if not children:
        return 0 if name == "-1" else 1
    if name == "Pow" and children[1] == ("-1",):
        return size(children[0])  # division is a sign
    return (name not in _SIGNS) + sum(map(size, children))


def tree(parsed: Any) -> Tree:
    """The form of an expression: what was added, multiplied or raised without any effect is left out."""
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
    if base[0] == "Pow" and exponent == base[2] == ("-1",):
        return base[1]  # type: ignore[no-any-return]
    return ("Pow", base, exponent)


def _within(whole: Tree) -> Iterator[Tree]:
    yield whole
    for child in whole[1:]:
        yield from _within(child)
