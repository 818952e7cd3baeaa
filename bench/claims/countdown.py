"""Countdown, problems with many correct answers: reach a number from four or five given digits with + - * /.

Each given number may be used once or not at all; division is exact, of fractions. An answer is a program that prints an
expression, which the verifier judges by evaluating it (`reaches`, the problems' checker). Everything is drawn from a
seed, with the standard library alone; `bed.py` writes the sets.

Two expressions are one if they differ in the order of terms and factors or in brackets that change nothing:
`canonical` gives both the same text, and `Expressions` lists each once.
"""

from __future__ import annotations

import ast
import itertools
import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any

from oapl_core.checkers import checker

Row = dict[str, Any]
Tree = int | tuple[str, tuple[tuple[bool, Any], ...]]
"""A number, or ("+", terms) or ("*", factors) with two or more of them, each with whether it is taken away (divided
by). A sum has no sums as terms, a product no products as factors."""
_Valued = tuple[int, int, Any]
"""Numerator and denominator (not in lowest terms, not 0) of a value, and what has it: a tree, or the parts of one."""

SIZES, LARGEST, TARGETS = (4, 5), 9, range(10, 31)
FEWEST, MOST = 5, 500
"""Solutions that a problem may have."""
LONGEST = 64
"""Characters of an expression that is read at all."""


class Expressions:
    """Every expression of some of the numbers (all different), each once."""

    def __init__(self, numbers: Sequence[int]) -> None:
        assert len(set(numbers)) == len(numbers), "equal numbers would count an expression twice"
        self._numbers = numbers
        self._of: dict[tuple[str, int], list[_Valued]] = {}
        self._lists: dict[tuple[str, int], list[_Valued]] = {}

    def __iter__(self) -> Iterator[_Valued]:
        """Of every subset, single numbers included."""
        for subset in range(1, 1 << len(self._numbers)):
            yield from self._all("+", subset)
            if subset & (subset - 1):
                yield from self._all("*", subset)

    def _all(self, kind: str, subset: int) -> list[_Valued]:
        """Those that use exactly ``subset`` and are sums (products), or the number itself."""
        if not subset & (subset - 1):
            number = self._numbers[subset.bit_length() - 1]
            return [(number, 1, number)]
        if (kind, subset) not in self._of:
            # of what is only taken away there is no expression: it begins with a term that is not
            self._of[kind, subset] = [
                (top, bottom, (kind, terms))
                for top, bottom, terms in self._parts(kind, subset, is_proper=True)
                if not all(inverse for inverse, _ in terms)
            ]
        return self._of[kind, subset]

    def _listed(self, kind: str, subset: int) -> list[_Valued]:
        if (kind, subset) not in self._lists:
            self._lists[kind, subset] = list(self._parts(kind, subset, is_proper=False))
        return self._lists[kind, subset]

    def _parts(self, kind: str, subset: int, is_proper: bool) -> Iterator[_Valued]:
        """Terms (factors) that together use ``subset``, with the value of their sum; proper: at least two."""
        other, lowest, block = ("*", "+")[kind == "*"], subset & -subset, subset
        while block:
            if block & lowest and not (is_proper and block == subset):
                rest = self._listed(kind, subset ^ block) if block != subset else [(int(kind == "*"), 1, ())]
                for top, bottom, tree in self._all(other, block):
                    kept, taken = (False, tree), (True, tree)
                    if kind == "+":
                        for onward, under, terms in rest:
                            ahead, behind = onward * bottom, top * under
                            yield ahead + behind, bottom * under, (kept, *terms)
                            yield ahead - behind, bottom * under, (taken, *terms)
                    else:
                        for onward, under, terms in rest:
                            yield top * onward, bottom * under, (kept, *terms)
                            if top:
                                yield bottom * onward, top * under, (taken, *terms)
            block = (block - 1) & subset


def solutions(numbers: Sequence[int], target: int) -> list[Tree]:
    """Every expression that reaches the target, each once."""
    return [tree for top, bottom, tree in Expressions(numbers) if top == target * bottom]


def written(tree: Tree, rng: random.Random | None = None) -> str:
    """The expression as text: terms and factors in a random order, or sorted."""
    if isinstance(tree, int):
        return str(tree)
    kind, parts = tree
    signs = "+-" if kind == "+" else "*/"
    texts = [(inverse, written(part, rng)) for inverse, part in parts]
    if kind == "*":
        texts = [
            (inverse, text if isinstance(part, int) else f"({text})")
            for (inverse, text), (_, part) in zip(texts, parts, strict=True)
        ]
    if rng is None:
        texts.sort()
    else:
        rng.shuffle(texts)
    first = next(number for number, (inverse, _) in enumerate(texts) if not inverse)
    texts.insert(0, texts.pop(first))
    return texts[0][1] + "".join(signs[inverse] + text for inverse, text in texts[1:])


def parsed(text: str) -> Tree | None:
    """An expression of whole numbers, + - * / and brackets; None for any other text."""
    if len(text) > LONGEST or not re.fullmatch(r"[\d+\-*/() ]+", text, re.ASCII):
        return None
    try:
        return _tree(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError):
        return None


def _tree(node: ast.expr) -> Tree:
    match node:
        case ast.Constant(value=int(number)):
            return number
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() | ast.Mult() | ast.Div() as sign, right=right):
            return joined(_tree(left), _SIGNS[type(sign)], _tree(right))
    raise ValueError(ast.dump(node))


_SIGNS: dict[type[ast.operator], str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}


def joined(left: Tree, sign: str, right: Tree) -> Tree:
    """The expression of two by + - * or /."""
    kind = "+" if sign in "+-" else "*"
    after = tuple((inverse != (sign in "-/"), part) for inverse, part in _flat(kind, right))
    return kind, (*_flat(kind, left), *after)


def _flat(kind: str, tree: Tree) -> tuple[tuple[bool, Tree], ...]:
    return tree[1] if isinstance(tree, tuple) and tree[0] == kind else ((False, tree),)


def canonical(text: str) -> str | None:
    """One text for all expressions that are the same; None for what is none."""
    tree = parsed(text)
    return None if tree is None else written(tree)


def value(tree: Tree) -> Fraction:
    """What the expression comes to. Raises ZeroDivisionError."""
    if isinstance(tree, int):
        return Fraction(tree)
    kind, parts = tree
    total = Fraction(int(kind == "*"))
    for inverse, part in parts:
        if kind == "+":
            total += -value(part) if inverse else value(part)
        else:
            total = total / value(part) if inverse else total * value(part)
    return total


def used(tree: Tree) -> Iterator[int]:
    """Every number in the expression."""
    if isinstance(tree, int):
        yield tree
    else:
        for _, part in tree[1]:
            yield from used(part)


@checker
def reaches(test_input: str, expected: str, printed: str) -> bool:
    """The checker: ``printed`` is an expression of the given numbers, none twice, that comes to the target."""
    target, *numbers = map(int, test_input.split())
    tree = parsed(printed.strip())
    if tree is None or Counter(used(tree)) - Counter(numbers):
        return False
    try:
        return value(tree) == target
    except ZeroDivisionError:
        return False


def answer(expression: str) -> str:
    """A whole answer: the program that prints it."""
    return f"```python\nprint('{expression}')\n```"


def expression_of(program: str) -> str | None:
    """What a program of that shape prints, in canonical form."""
    found = re.fullmatch(r"\s*print\('([^']*)'\)\s*", program)
    return canonical(found[1]) if found else None


def number_sets(rng: random.Random) -> Iterator[tuple[int, ...]]:
    """Every set of numbers that a problem may have, in a random order."""
    every = [numbers for size in SIZES for numbers in itertools.combinations(range(1, LARGEST + 1), size)]
    rng.shuffle(every)
    return iter(every)


def draw(rng: random.Random, unused: Iterator[tuple[int, ...]]) -> Iterator[tuple[Row, list[Tree]]]:
    """Problems without id and split, each with all of its solutions, from sets of numbers that nobody had yet."""
    for numbers in unused:
        reached: dict[int, list[Tree]] = {}
        for top, bottom, tree in Expressions(numbers):
            if not top % bottom and top // bottom in TARGETS:
                reached.setdefault(top // bottom, []).append(tree)
        fitting = [target for target, found in sorted(reached.items()) if FEWEST <= len(found) <= MOST]
        for target in rng.sample(fitting, len(fitting)):
            yield _row(rng.sample(numbers, len(numbers)), target, reached[target]), reached[target]


def _row(numbers: Sequence[int], target: int, found: Sequence[Tree]) -> Row:
    given = " ".join(map(str, numbers))
    return {
        "kind": "stdin",
        "statement": f"Numbers: {given}\nTarget: {target}",
        "checker": f"{__name__}:{reaches.__name__}",
        "tests": [{"input": f"{target}\n{given}\n", "output": written(found[0])}],
        "structure": f"countdown: {len(numbers)} numbers, {len(found)} solutions",
    }


def shown(rng: random.Random, found: Sequence[Tree]) -> str:
    """A random solution as an answer: first how many numbers it uses, so that short ones are as likely as long ones."""
    sizes: dict[int, list[Tree]] = {}
    for tree in found:
        sizes.setdefault(sum(1 for _ in used(tree)), []).append(tree)
    return answer(written(rng.choice(sizes[rng.choice(sorted(sizes))]), rng))
