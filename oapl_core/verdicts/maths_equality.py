r"""Equality of two parsed answers: numbers, expressions, relations, lists, sets and matrices, each by its own rule.

Reads sympy objects as latex2sympy leaves them (unevaluated); math-verify is asked last, for expressions with variables
and for sets. docs/maths.md states the rules. Everything here may take long or raise: the worker bounds and counts it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from oapl_core.verdicts import maths_relations as relations
from oapl_core.verdicts.maths_evaluation import clean, evaluated

_MANY_DIGITS = 220
_APART = 1e-20
"""Relative difference from which on two numbers, computed with 30 digits, are different."""
_DECIMALS, _SIGNIFICANT = 5e-7, 1e-5
"""A decimal stands for a number that is none if it is right to six decimals and to five significant digits."""


@dataclass(frozen=True)
class Equality:
    """Compares a gold with answers. `has_decimal`: a decimal point stands in one of them, so one may be rounded.

    `is_braced` (gold, answer): the text opens with a brace, so that its elements have no order.
    """

    library: Callable[[Any, Any], bool]
    has_decimal: bool = False
    is_braced: tuple[bool, bool] = (False, False)

    def equal(self, gold: Any, answer: Any) -> bool:
        """Whether the answer means the same as the gold."""
        import sympy

        ours, theirs = relations.links(gold), relations.links(answer)
        if ours and theirs:
            return relations.same(ours, theirs, self.equal) or self._same_set(ours, theirs)
        if ours or theirs:
            return self._one_relation(gold, answer, ours, theirs)
        if _is_list(gold) or _is_list(answer) or (_is_matrix(gold) != _is_matrix(answer)):
            return self._lists(gold, answer)
        if isinstance(gold, sympy.Set) or isinstance(answer, sympy.Set):
            return self._sets(gold, answer)
        if _is_matrix(gold) or _is_matrix(answer):
            return self._matrices(gold, answer)
        if isinstance(gold, sympy.Expr) and isinstance(answer, sympy.Expr):
            return self._expressions(clean(gold), clean(answer))
        return bool(gold == answer)

    def _one_relation(self, gold: Any, answer: Any, ours: list[Any], theirs: list[Any]) -> bool:
        """x = 5 is as good as 5, x < 3 as its interval; nothing else that holds a relation is as good as its side."""
        import sympy

        links, other = (ours, answer) if ours else (theirs, gold)
        value = relations.value(links, self.equal, is_trusted=bool(ours))
        if value is None:
            value = relations.solutions(links) if isinstance(other, sympy.Set) else None
        if value is None:
            return False
        return self.equal(value, answer) if ours else self.equal(gold, value)

    def _same_set(self, gold: list[Any], answer: list[Any]) -> bool:
        r"""x \in [1, 2] and 1 <= x <= 2, in either direction, of the same name."""
        import sympy

        if relations.symbols(gold) != relations.symbols(answer):
            return False
        values = [relations.value(links, self.equal, is_trusted=False) for links in (gold, answer)]
        sets = [
            relations.solutions(links) if value is None else value
            for links, value in zip((gold, answer), values, strict=True)
        ]
        return all(isinstance(one, sympy.Set) for one in sets) and self.equal(*sets)

    def _lists(self, gold: Any, answer: Any) -> bool:
        """A list or set regardless of order; a point, or a list that is to be one, in its order."""
        import sympy

        if isinstance(gold, sympy.Set) and not _is_list(gold) and _elements(gold) is None:
            joined = relations.union(_elements(answer) or [])
            return joined is not None and self.equal(gold, joined)
        ours, theirs = _elements(gold), _elements(answer)
        if ours is None or theirs is None:
            return False
        if len(ours) == 1 and isinstance(answer, sympy.FiniteSet) and not self.is_braced[1]:
            return all(self.equal(ours[0], other) for other in theirs)  # one value, written in several ways
        if len(ours) != len(theirs):
            return False
        gold_is_set, answer_is_set = isinstance(gold, sympy.FiniteSet), isinstance(answer, sympy.FiniteSet)
        if (gold_is_set and self.is_braced[0] and not answer_is_set and len(theirs) > 1) or (
            answer_is_set and self.is_braced[1] and not gold_is_set and len(ours) > 1
        ):
            return False  # {1, 2} is not the point (1, 2)
        if not gold_is_set:
            return all(map(self.equal, ours, theirs))
        return self._in_any_order(ours, theirs)

    def _in_any_order(self, ours: Sequence[Any], theirs: Sequence[Any]) -> bool:
        left = list(theirs)
        for one in ours:
            found = next((number for number, other in enumerate(left) if self.equal(one, other)), None)
            if found is None:
                return False
            del left[found]
        return not left

    def _sets(self, gold: Any, answer: Any) -> bool:
        import sympy

        if isinstance(gold, sympy.Interval) and isinstance(answer, sympy.Interval):
            return (
                (gold.left_open, gold.right_open) == (answer.left_open, answer.right_open)
                and self.equal(gold.start, answer.start)
                and self.equal(gold.end, answer.end)
            )
        if not isinstance(gold, sympy.Set) or not isinstance(answer, sympy.Set):
            return False
        if isinstance(gold, sympy.Union) and isinstance(answer, sympy.Union) and len(gold.args) == len(answer.args):
            return self._in_any_order(gold.args, answer.args)
        return bool(gold == answer) or self.library(gold, answer)

    def _matrices(self, gold: Any, answer: Any) -> bool:
        """Element by element; a product or sum of matrices as math-verify sees it."""
        gold, answer = (one.doit() if hasattr(one, "doit") else one for one in (gold, answer))
        ours, theirs = _entries(gold), _entries(answer)
        if ours is None or theirs is None:
            return self.library(gold, answer)
        return bool(gold.shape == answer.shape) and all(map(self.equal, ours, theirs))

    def _expressions(self, gold: Any, answer: Any) -> bool:
        if gold == answer:
            return True
        if not gold.free_symbols and not answer.free_symbols:
            return self._numbers(gold, answer)
        points = [(evaluated(gold, shift), evaluated(answer, shift)) for shift in (0, 1)]
        if any(one is not None and other is not None and _differ(one, other) for one, other in points):
            return False
        return self.library(gold, answer)

    def _numbers(self, gold: Any, answer: Any) -> bool:
        """Exact, except that a decimal may stand for a number that no decimal equals."""
        import sympy

        one, other = evaluated(gold), evaluated(answer)
        if one is None or other is None:
            return bool(gold.doit() == answer.doit())
        is_rounded = self.has_decimal and _is_decimal(gold) != _is_decimal(answer)
        difference, size = abs(one - other), max(abs(one), abs(other))
        if is_rounded:
            return bool(difference <= _DECIMALS and difference <= _SIGNIFICANT * size)
        if size > _APART and difference > _APART * size:
            return False
        gold, answer = gold.doit(), answer.doit()
        if gold.is_Rational and answer.is_Rational:
            return bool(gold == answer)
        if size > _APART:
            rest = sympy.N(gold - answer, _MANY_DIGITS, maxn=1000)
            return bool(abs(rest) <= size * sympy.Float(10) ** (20 - _MANY_DIGITS))
        return sympy.simplify(gold - answer).is_zero is True


def _differ(one: Any, other: Any) -> bool:
    size = max(abs(one), abs(other))
    return bool(size > _APART and abs(one - other) > 1e-12 * size)


def _is_decimal(number: Any) -> bool:
    """Whether a number can be written with finitely many decimals."""
    value = number if number.is_Rational else number.doit()
    if not value.is_Rational:
        return False
    rest = value.q
    for prime in (2, 5):
        while rest % prime == 0:
            rest //= prime
    return bool(rest == 1)


def _is_list(value: Any) -> bool:
    import sympy

    return isinstance(value, sympy.FiniteSet | sympy.Tuple)


def _is_matrix(value: Any) -> bool:
    import sympy

    return isinstance(value, sympy.MatrixBase | sympy.MatrixExpr)


def _elements(value: Any) -> list[Any] | None:
    """What a list holds, in the order of the text. (a, b) is parsed as an interval, a column stands for a point."""
    import sympy

    if _is_list(value):
        return list(getattr(value, "_unsorted_args", value.args))
    if isinstance(value, sympy.Interval):
        return [value.start, value.end] if value.left_open and value.right_open else None
    if isinstance(value, sympy.Set | sympy.MatrixExpr):
        return None
    if isinstance(value, sympy.MatrixBase):
        return list(value) if value.shape[1] == 1 else None
    return [value]


def _entries(value: Any) -> list[Any] | None:
    import sympy

    return list(value) if isinstance(value, sympy.MatrixBase) else None
