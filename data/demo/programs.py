"""Programs of the demo's problem set: chains of small list operations, each with one right line and its wrong habits.

Reads nothing, writes nothing: generate.py draws chains from OPERATIONS and ENDINGS, and renders and runs them here.
A habit is a wrong line that the made-up solutions contain instead of the right one (`>=` for `>`, a slice off by one,
ascending for descending). `p_right` is the share of made-up solutions that have the line right; the choice is made
per line, at random, independently of the numbers and of the other lines.
"""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from types import CodeType


@dataclass(frozen=True)
class Operation:
    """One step of a chain; `{k}` in the texts stands for the step's constant, a single digit."""

    name: str
    phrase: str
    right: str
    wrong: tuple[str, ...]
    p_right: float
    constants: tuple[int, ...] = ()
    """The constants the step may take; empty when it has none."""


@dataclass(frozen=True)
class Step:
    """An operation with its constant drawn (0 when it has none)."""

    operation: Operation
    k: int

    def phrase(self) -> str:
        """What the problem statement says."""
        return self.operation.phrase.format(k=self.k)

    def line(self, habit: int = 0) -> str:
        """The code of the step: habit 0 is the right line, habit i > 0 the i-th wrong one."""
        return (self.operation.right, *self.operation.wrong)[habit].format(k=self.k)


def _each(right: str, *wrong: str) -> tuple[str, tuple[str, ...]]:
    return f"a = [{right} for v in a]", tuple(f"a = [{text} for v in a]" for text in wrong)


def _keep(right: str, *wrong: str) -> tuple[str, tuple[str, ...]]:
    return f"a = [v for v in a if {right}]", tuple(f"a = [v for v in a if {text}]" for text in wrong)


def _list(right: str, *wrong: str) -> tuple[str, tuple[str, ...]]:
    return f"a = {right}", tuple(f"a = {text}" for text in wrong)


_ANY = tuple(range(1, 10))
_FEW = (1, 2, 3)

OPERATIONS = (
    Operation("keep_even", "keep the even numbers", *_keep("v % 2 == 0", "v % 2 == 1"), 0.95),
    Operation("keep_odd", "keep the odd numbers", *_keep("v % 2 == 1", "v % 2 == 0"), 0.6),
    Operation("keep_above", "keep those above {k}", *_keep("v > {k}", "v >= {k}"), 0.35, _ANY),
    Operation("keep_below", "keep those below {k}", *_keep("v < {k}", "v <= {k}"), 0.9, _ANY),
    Operation("keep_at_most", "keep those of at most {k}", *_keep("v <= {k}", "v < {k}"), 0.12, _ANY),
    Operation("keep_multiples", "keep the multiples of {k}", *_keep("v % {k} == 0", "v % {k} == 1"), 0.95, (3, 4, 5)),
    Operation("add", "add {k} to each", *_each("v + {k}", "v - {k}"), 0.97, _ANY),
    Operation("subtract", "subtract {k} from each", *_each("v - {k}", "{k} - v"), 0.7, _ANY),
    Operation("subtract_from", "subtract each from {k}", *_each("{k} - v", "v - {k}"), 0.12, _ANY),
    Operation("multiply", "multiply each by {k}", *_each("v * {k}", "v + {k}"), 0.95, tuple(range(2, 10))),
    Operation("square", "square each", *_each("v * v", "v + v"), 0.95),
    Operation("absolute", "take absolute values", *_each("abs(v)", "-v"), 0.8),
    Operation("remainder", "take remainders modulo {k}", *_each("v % {k}", "v // {k}"), 0.2, (3, 4, 5, 6, 7)),
    Operation("cap", "lower each to at most {k}", *_each("min({k}, v)", "max({k}, v)"), 0.5, _ANY),
    Operation("raise_to", "raise each to at least {k}", *_each("max({k}, v)", "min({k}, v)"), 0.9, _ANY),
    Operation("ascending", "sort ascending", *_list("sorted(a)", "sorted(a, reverse=True)"), 0.97),
    Operation("descending", "sort descending", *_list("sorted(a, reverse=True)", "sorted(a)"), 0.15),
    Operation("reverse", "reverse the order", *_list("[*reversed(a)]", "sorted(a, reverse=True)"), 0.9),
    Operation("unique", "remove repeats", *_list("[*dict.fromkeys(a)]", "sorted({{*a}})"), 0.5),
    Operation("take_first", "take the first {k}", *_list("a[:{k}]", "a[{k}:]"), 0.95, (2, 3, 4)),
    Operation("drop_first", "drop the first {k}", *_list("a[{k}:]", "a[:{k}]"), 0.7, _FEW),
    Operation("take_last", "take the last {k}", *_list("a[-{k}:]", "a[{k}:]"), 0.8, (2, 3, 4)),
    Operation("drop_last", "drop the last {k}", *_list("a[:-{k}]", "a[-{k}:]"), 0.2, _FEW),
)
"""The steps in the middle of a chain."""

ENDINGS = (
    Operation("sum", "the sum", "sum(a)", ("len(a)",), 0.97),
    Operation("count", "how many are left", "len(a)", ("sum(a)",), 0.85),
    Operation("largest", "the largest", "max(a)", ("min(a)",), 0.95),
    Operation("smallest", "the smallest", "min(a)", ("max(a)",), 0.7),
    Operation("range", "the largest minus the smallest", "max(a) - min(a)", ("max(a) + min(a)",), 0.25),
    Operation("last", "the last", "a[-1]", ("a[0]",), 0.65),
    Operation("first", "the first", "a[0]", ("a[-1]",), 0.97),
    Operation("list", "the list", "a", ("sorted(a)",), 0.95),
)
"""What a program prints (kind stdin) or returns (kind function)."""


def statement(kind: str, chain: Sequence[Step]) -> str:
    """The problem as the model is shown it: a line for each step, indented as the program's are."""
    verb = "print" if kind == "stdin" else "return"
    lines = [*(step.phrase() for step in chain[:-1]), f"{verb} {chain[-1].phrase()}"]
    if kind == "stdin":
        where = " on one line" if chain[-1].operation.name == "list" else ""
        return "\n".join(["Read integers from one line:", *lines]) + where
    return "\n".join(["Write solve(a) for a list of integers:", *(f"    {line}" for line in lines)])


def code(kind: str, chain: Sequence[Step], habits: Sequence[int]) -> str:
    """The program with the given habit at each step (0 = right), one line per step."""
    lines = [step.line(habit) for step, habit in zip(chain, habits, strict=True)]
    if kind == "stdin":
        result = "*a" if lines[-1] == "a" else "*sorted(a)" if lines[-1] == "sorted(a)" else lines[-1]
        return "\n".join(["a = [int(v) for v in input().split()]", *lines[:-1], f"print({result})"])
    return "\n".join(["def solve(a):", *(f"    {line}" for line in lines[:-1]), f"    return {lines[-1]}"])


def answer(kind: str, chain: Sequence[Step], habits: Sequence[int]) -> str:
    """A whole solution: the program in a fence, as the verifier expects it."""
    return f"```python\n{code(kind, chain, habits)}\n```"


def run(kind: str, program: str, numbers: list[int]) -> str | None:
    """The program's output on one input (printed text, or the returned value as JSON); None if it crashes."""
    printed: list[str] = []
    scope: dict[str, object] = {
        "input": lambda: " ".join(map(str, numbers)),
        "print": lambda *values: printed.append(" ".join(map(str, values))),
    }
    try:
        exec(_compiled(program), scope)  # our own code, made by code() above
        return "\n".join(printed) if kind == "stdin" else json.dumps(scope["solve"](list(numbers)))  # type: ignore[operator]
    except (IndexError, ValueError, ZeroDivisionError):
        return None


@functools.lru_cache(maxsize=64)
def _compiled(program: str) -> CodeType:
    return compile(program, "<chain>", "exec")


def draw_chain(rng: random.Random, n_operations: int) -> list[Step]:
    """A chain of different operations and an ending, with constants; it may turn out useless (see draw_tests)."""
    operations = [*rng.sample(OPERATIONS, n_operations), rng.choice(ENDINGS)]
    return [Step(operation, rng.choice(operation.constants or (0,))) for operation in operations]


def draw_answer(rng: random.Random, kind: str, chain: Sequence[Step]) -> str:
    """One made-up solution: each step right with its own probability."""
    habits = [
        0 if rng.random() < step.operation.p_right else rng.randint(1, len(step.operation.wrong)) for step in chain
    ]
    return answer(kind, chain, habits)


def single_faults(chain: Sequence[Step]) -> list[list[int]]:
    """Every way to have exactly one step wrong."""
    return [
        [habit if at == index else 0 for at in range(len(chain))]
        for index, step in enumerate(chain)
        for habit in range(1, len(step.operation.wrong) + 1)
    ]


def draw_tests(rng: random.Random, kind: str, chain: Sequence[Step], n_tests: int) -> list[dict[str, str]] | None:
    """Tests that tell the right program from each single fault; None when the chain allows none.

    Every test must have a result from a list that is not empty, and no two tests the same input. A chain in which some
    wrong habit cannot be seen (sorting before a sum) is refused.
    """
    n = len(chain)
    right = code(kind, chain, [0] * n)
    inputs = [_draw_numbers(rng, chain) for _ in range(30)]
    outputs = [(numbers, run(kind, right, numbers)) for numbers in inputs]
    expected = [(numbers, output) for numbers, output in outputs if output not in (None, "", "[]")]
    if len({output for _, output in expected}) < 4:
        return None
    chosen: list[int] = []
    for habits in single_faults(chain):
        wrong = code(kind, chain, habits)
        telling = [i for i, (numbers, output) in enumerate(expected) if run(kind, wrong, numbers) != output]
        if len(telling) < 3:
            return None
        if not set(telling) & set(chosen):
            chosen.append(telling[0])
    chosen += [i for i in range(len(expected)) if i not in chosen][: max(0, n_tests - len(chosen))]
    if len(chosen) < n_tests:
        return None
    return [_test(kind, *expected[i]) for i in chosen]


def _draw_numbers(rng: random.Random, chain: Sequence[Step]) -> list[int]:
    """A list that visits the boundaries: constants of the chain, their neighbours, repeats and both signs."""
    near = [step.k + delta for step in chain if step.operation.constants for delta in (-1, 0, 1)]
    size = rng.randint(6, 9)
    numbers = [rng.choice(near) if near and rng.random() < 0.4 else rng.randint(-9, 20) for _ in range(size)]
    return [*numbers, rng.choice(numbers)]


def _test(kind: str, numbers: list[int], output: str) -> dict[str, str]:
    if kind == "function":
        return {"input": json.dumps([numbers]), "output": output}
    return {"input": " ".join(map(str, numbers)) + "\n", "output": f"{output}\n"}
