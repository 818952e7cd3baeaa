r"""Family 2, dependency problems as iGSM's (arXiv 2407.20311): values that depend on others, all modulo a prime.

A problem defines values in a random order, some of which nobody needs, and asks for one. An answer derives what is
needed, a line for each value with its definition, the numbers put in, and the result:

    mod 23
    b=7
    k=b*b=7*7=3
    a=k-b=3-7=19

The whole derivation stands in the box, and every line of it is checked (`derives`, the checker): right are all orders
in which each line needs only lines before it.
"""

from __future__ import annotations

import random
import re
import string
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.claims.mixture.scales import Scale, Tier
from oapl_core.checkers import checker

Row = dict[str, Any]
LETTERS = string.ascii_lowercase + string.ascii_uppercase
"""Names of values."""
OPERATIONS = "+-*"
SPARE = (1, 2, 3)
"""Values that are defined and not needed."""
CONSTANTS = (2, 3, 4, 5)
_LINE = re.compile(
    r"([a-zA-Z])=(?:(\d{1,3})|(\w{1,3})([+\-*])(\w{1,3})=(\d{1,3})([+\-*])(\d{1,3})=(\d{1,3}))", re.ASCII
)


@dataclass(frozen=True)
class Value:
    """A definition: a number, or two operands, each a name or a number."""

    name: str
    left: str
    operation: str = ""
    right: str = ""

    @property
    def needs(self) -> tuple[str, ...]:
        """Names of the values that it is made from."""
        return tuple(dict.fromkeys(one for one in (self.left, self.right) if one.isalpha()))

    def __str__(self) -> str:
        return f"{self.name}={self.left}{self.operation}{self.right}"


def computed(left: int, operation: str, right: int, modulus: int) -> int:
    """The result of an operation."""
    return (left + right if operation == "+" else left - right if operation == "-" else left * right) % modulus


def line(value: Value, known: Mapping[str, int], result: int) -> str:
    """A line of a derivation."""
    if not value.operation:
        return f"{value.name}={result}"
    left, right = (known[one] if one.isalpha() else int(one) for one in (value.left, value.right))
    return f"{value}={left}{value.operation}{right}={result}"


def judged(expected: str, printed: str) -> list[bool]:
    """Whether each line of a derivation is right, the lines before it taken as they stand.

    A line is right if the value is one of the expected, was not derived before, is defined as the problem says, needs
    only values that were derived, puts in what those lines said, and computes right. Once a line is wrong, those that
    rest on it can still be right; `derives` wants all to be.
    """
    first, *rest = expected.strip().split("\n")
    modulus, defined = int(first.removeprefix("mod ")), {}
    for text in rest:
        match = _LINE.fullmatch(text)
        assert match, "a problem's own derivation is written as an answer's"
        defined[match[1]] = match
    lines, known, found = printed.strip().split("\n"), dict[str, int](), list[bool]()
    for number, text in enumerate(lines):
        if number == 0:
            found.append(text == first)
            continue
        match = _LINE.fullmatch(text)
        if match is None:
            found.append(False)
            continue
        own = defined.get(match[1])
        is_new = own is not None and match[1] not in known
        found.append(is_new and own is not None and _is_right(own, match, known, modulus))
        known[match[1]] = int(match[2] or match[9])
    return found


def _is_right(own: re.Match[str], said: re.Match[str], known: Mapping[str, int], modulus: int) -> bool:
    """Whether a line says of its value what its definition and the lines before it make of it."""
    if own[2]:
        return said[0] == own[0]
    if said[2] or (said[3], said[4], said[5]) != (own[3], own[4], own[5]) or said[7] != said[4]:
        return False
    for operand, number in ((said[3], said[6]), (said[5], said[8])):
        if number != (str(known.get(operand)) if operand.isalpha() else operand):
            return False
    return said[9] == str(computed(int(said[6]), said[7], int(said[8]), modulus))


@checker
def derives(test_input: str, expected: str, printed: str) -> bool:
    """The checker: every line is right, every needed value is there, and the last one is what was asked for."""
    # the value that is asked for needs all others, so that right lines which end with it are all there are
    asked = expected.strip().rpartition("\n")[2][:1]
    found = judged(expected, printed)
    # one line alone gives the modulus, and no value: `mod 7` would begin like a value `m`
    return len(found) > 1 and printed.strip().rpartition("\n")[2][:1] == asked and all(found)


def draw(rng: random.Random, scale: Scale, tier: Tier) -> tuple[str, Row]:
    """A problem without id and split, and what of it no two sets share: its definitions, whatever their names."""
    operations = rng.choice(scale.operations[tier])
    needed = _needed(rng, operations, scale)
    spare = list[Value]()
    free = [letter for letter in LETTERS if letter not in {value.name for value in needed}]
    for name in rng.sample(free, rng.choice(SPARE)):
        spare.append(_derived(rng, name, [value.name for value in [*needed[:-1], *spare]], scale.modulus))
    asked, every = needed[-1].name, [*needed, *spare]
    rng.shuffle(every)
    statement = "\n".join([f"mod {scale.modulus}", *map(str, every), f"{asked}?"])
    row = {
        "kind": "math",
        "statement": statement,
        "checker": f"{__name__}:{derives.__name__}",
        "answer": derivation(needed, scale.modulus),
        "structure": f"dependencies {tier}: {operations} operations",
    }
    return _shape(needed), row


def _needed(rng: random.Random, operations: int, scale: Scale) -> list[Value]:
    """Values in an order of derivation, each of which the last one needs; so many of them have an operation."""
    leaves = rng.randint(1, min(3, operations + 1))
    names = rng.sample(LETTERS, leaves + operations)
    made = [Value(name, str(rng.randrange(scale.modulus))) for name in names[:leaves]]
    unused = [value.name for value in made]
    # each of these steps joins two values that nobody has used; after them one is left
    joining = set(rng.sample(range(operations), leaves - 1))
    for number, name in enumerate(names[leaves:]):
        first = unused.pop(rng.randrange(len(unused)))
        if number in joining:
            second = unused.pop(rng.randrange(len(unused)))
        else:
            used = [value.name for value in made if value.name not in unused]
            second = rng.choice(used) if rng.random() < 0.5 else str(rng.choice(CONSTANTS))
        # a problem asks for the difference in either order
        left, right = (first, second) if rng.random() < 0.5 else (second, first)
        made.append(Value(name, left, rng.choice(OPERATIONS), right))
        unused.append(name)
    return made


def _derived(rng: random.Random, name: str, others: Sequence[str], modulus: int) -> Value:
    """A value that is defined by any others."""
    if not others or rng.random() < 0.3:
        return Value(name, str(rng.randrange(modulus)))
    right = rng.choice(others) if rng.random() < 0.5 else str(rng.choice(CONSTANTS))
    return Value(name, rng.choice(others), rng.choice(OPERATIONS), right)


def _shape(needed: Sequence[Value]) -> str:
    """The definitions with their values numbered instead of named: equal for problems that differ in names alone."""
    numbers = {value.name: f"v{number}" for number, value in enumerate(needed)}
    return " ".join(
        "".join(numbers.get(part, part) for part in (value.left, value.operation, value.right)) for value in needed
    )


def derivation(values: Sequence[Value], modulus: int, rng: random.Random | None = None, slips: float = 0.0) -> str:
    """The lines for values that are in an order of derivation; a line slips with a probability, to one too low."""
    known, lines = dict[str, int](), [f"mod {modulus}"]
    for value in values:
        left, right = (known[one] if one.isalpha() else int(one or 0) for one in (value.left, value.right))
        result = computed(left, value.operation, right, modulus) if value.operation else left
        if value.operation and rng is not None and rng.random() < slips:
            result = (result - 1) % modulus
        lines.append(line(value, known, result))
        known[value.name] = result
    return "\n".join(lines)


def ordered(rng: random.Random, values: Sequence[Value]) -> list[Value]:
    """The same values in a random order of derivation."""
    left, found, known = list(values), list[Value](), set[str]()
    while left:
        ready = [value for value in left if known.issuperset(value.needs)]
        found.append(rng.choice(ready))
        known.add(found[-1].name)
        left.remove(found[-1])
    return found


def values_of(expected: str) -> list[Value]:
    """The values of a problem's own derivation."""
    found = []
    for text in expected.split("\n")[1:]:
        match = _LINE.fullmatch(text)
        assert match
        found.append(Value(match[1], match[2]) if match[2] else Value(match[1], match[3], match[4], match[5]))
    return found


def answers(rng: random.Random, scale: Scale, row: Row) -> Iterator[str]:
    """Made-up answers without end."""
    values = values_of(row["answer"])
    while True:
        yield f"\\boxed{{{derivation(ordered(rng, values), scale.modulus, rng, scale.slips)}}}"
