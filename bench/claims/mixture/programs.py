r"""Family 3, list programs from examples: three lists with what becomes of each, and four hidden tests.

An answer is a function in Python, a line for each operation, which the sandbox runs on examples and hidden tests:

    def f(x):
        x = x[::-1]
        x = [v + 3 for v in x]
        return x

Programs that do the same to a fixed series of lists are one program, whatever their lines. Some pairs of operations are
reserved for the harder tier: no other problem has one of them behind the other.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from bench.claims.mixture.scales import Scale, Tier

Row = dict[str, Any]
Numbers = list[int]
SHOWN, HIDDEN = 3, 4
"""Tests of a problem that its statement shows, and those that it does not."""
LARGEST, LENGTHS = 9, (4, 5, 6)
"""Of the lists that a program is given."""
RESERVED = 0.15
"""Share of pairs of operations that only the harder tier has."""
PROBES = 24
"""Lists by which programs are told apart."""


@dataclass(frozen=True)
class Operation:
    """What a line does."""

    kind: str
    """Name of it without its constant."""
    code: str
    does: Callable[[Numbers], Numbers]


_PLAIN: tuple[tuple[str, str, Callable[[Numbers], Numbers]], ...] = (
    ("reverse", "x[::-1]", lambda x: x[::-1]),
    ("sort", "sorted(x)", sorted),
    ("unlike", "list(dict.fromkeys(x))", lambda x: list(dict.fromkeys(x))),
    ("even", "[v for v in x if v % 2 == 0]", lambda x: [v for v in x if v % 2 == 0]),
    ("odd", "[v for v in x if v % 2 == 1]", lambda x: [v for v in x if v % 2 == 1]),
    ("second", "x[::2]", lambda x: x[::2]),
    ("twice", "x + x", lambda x: x + x),
    ("turn", "x[1:] + x[:1]", lambda x: x[1:] + x[:1]),
    ("short", "x[:-1]", lambda x: x[:-1]),
)
_WITH_CONSTANT: tuple[tuple[str, str, Callable[[int, Numbers], Numbers], tuple[int, ...]], ...] = (
    ("add", "[v + K for v in x]", lambda k, x: [v + k for v in x], (1, 2, 3, 4, 5)),
    ("times", "[v * K for v in x]", lambda k, x: [v * k for v in x], (2, 3)),
    ("first", "x[:K]", lambda k, x: x[:k], (2, 3)),
    ("drop", "x[K:]", lambda k, x: x[k:], (1, 2)),
    ("above", "[v for v in x if v > K]", lambda k, x: [v for v in x if v > k], (3, 4, 5, 6)),
    ("below", "[v for v in x if v < K]", lambda k, x: [v for v in x if v < k], (3, 4, 5, 6)),
)
OPERATIONS = [
    *(Operation(*one) for one in _PLAIN),
    *(
        Operation(kind, code.replace("K", str(k)), partial(does, k))
        for kind, code, does, constants in _WITH_CONSTANT
        for k in constants
    ),
]
_BY_CODE = {one.code: one for one in OPERATIONS}


@cache
def reserved() -> frozenset[tuple[str, str]]:
    """Pairs of operations, the second behind the first, that only the harder tier has."""
    kinds = list(dict.fromkeys(one.kind for one in OPERATIONS))
    pairs = [(one, other) for one in kinds for other in kinds if one != other]
    return frozenset(random.Random("reserved pairs").sample(pairs, round(RESERVED * len(pairs))))


def has_reserved(program: Sequence[Operation]) -> bool:
    """Whether a program has one of the reserved pairs."""
    kinds = [one.kind for one in program]
    return not reserved().isdisjoint(itertools.pairwise(kinds))


def applied(program: Sequence[Operation], numbers: Numbers) -> Numbers:
    """What a program makes of a list."""
    for one in program:
        numbers = one.does(numbers)
    return numbers


@cache
def _probes() -> tuple[tuple[int, ...], ...]:
    rng = random.Random("probes")
    return tuple(tuple(_given(rng)) for _ in range(PROBES))


def _given(rng: random.Random) -> Numbers:
    # few different digits, so that equal ones come together
    return [rng.randint(0, LARGEST) for _ in range(rng.choice(LENGTHS))]


def behaviour(program: Sequence[Operation]) -> str:
    """A hash of what a program does."""
    made = json.dumps([applied(program, list(one)) for one in _probes()])
    return hashlib.sha256(made.encode()).hexdigest()[:24]


def is_needed(program: Sequence[Operation], tests: Sequence[Numbers]) -> bool:
    """Whether the tests tell a program from each of those with one operation less."""
    made = [applied(program, one) for one in tests]
    return all(made != [applied([*program[:k], *program[k + 1 :]], one) for one in tests] for k in range(len(program)))


def answer(program: Sequence[Operation]) -> str:
    """A whole answer."""
    lines = "".join(f"    x = {one.code}\n" for one in program)
    return f"```python\ndef f(x):\n{lines}    return x\n```"


def draw(rng: random.Random, scale: Scale, tier: Tier) -> tuple[str, Row]:
    """A problem without id and split, and what of it no two sets share: what its program does."""
    while True:
        program = rng.choices(OPERATIONS, k=rng.choice(scale.lines[tier]))
        if has_reserved(program) != (tier == "harder"):
            continue
        tests = [_given(rng) for _ in range(SHOWN + HIDDEN)]
        # what is shown must show every operation, and no program is asked for that empties its lists
        if is_needed(program, tests[:SHOWN]) and all(applied(program, one) for one in tests[:SHOWN]):
            break
    return behaviour(program), _row(program, tests, tier)


def _row(program: Sequence[Operation], tests: Sequence[Numbers], tier: Tier) -> Row:
    pairs = [(one, applied(program, one)) for one in tests]
    shown = ["f: " + " -> ".join(" ".join(map(str, side)) for side in pair) for pair in pairs[:SHOWN]]
    return {
        "kind": "function",
        "statement": "\n".join(shown),
        "entry_point": "f",
        "tests": [{"input": json.dumps([given]), "output": json.dumps(made)} for given, made in pairs],
        "structure": f"programs {tier}: " + " > ".join(one.kind for one in program),
        "answer": answer(program),
    }


def program_of(text: str) -> list[Operation]:
    """The operations of an answer as `answer` writes it."""
    return [_BY_CODE[line.removeprefix("    x = ")] for line in text.split("\n") if line.startswith("    x = ")]


def answers(rng: random.Random, scale: Scale, row: Row) -> Iterator[str]:
    """Made-up answers without end: of the given share one operation is another one."""
    program = program_of(row["answer"])
    while True:
        own = list(program)
        if rng.random() < scale.mistaken:
            own[rng.randrange(len(own))] = rng.choice(OPERATIONS)
        if has_reserved(own) and not has_reserved(program):
            continue  # pretraining must not show a pair that is the harder tier's alone
        yield answer(own)
