r"""Family 1, Countdown by written search (after Stream of Search, arXiv 2404.03683): reach a number from those given.

An answer searches aloud, in depth first. A line combines two numbers and says what is left, a line that begins with
`<` returns to an earlier state, and the box at the end has the steps that reach the target:

    5+7=12 3 9 12
    9+12=21 3 21
    3*21=63 x
    3+21=24 !
    \boxed{5+7=12,9+12=21,3+21=24}

Only the box is judged (`reaches`, the checker). How long to search and when to stop is the model's own choice.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.claims import countdown
from bench.claims.mixture.scales import Scale, Tier
from oapl_core.checkers import checker

Row = dict[str, Any]
Step = tuple[int, str, int, int]
"""Left operand, operation, right operand, result."""

HEURISTICS = ("near", "factor", "total", "random")
"""What decides which step is tried first: a number near the target, one near a factor of it, the sum, or nothing."""
WIDTHS = (1, 2, 3, 4)
"""Steps that are tried from one state, drawn for each search."""
LARGEST = 999
"""Numbers above are not followed."""
TRIES = 64
"""Searches that are drawn until one ends as is wanted."""
_STEP = re.compile(r"(\d{1,6})([+\-*/])(\d{1,6})=(\d{1,6})", re.ASCII)


def applied(left: int, operation: str, right: int) -> int | None:
    """The result, a whole number above 0; None where there is none."""
    if operation == "+":
        return left + right
    if operation == "*":
        return left * right
    if operation == "-":
        return left - right if left > right else None
    return left // right if right and left % right == 0 and left else None


def steps_of(text: str) -> list[Step] | None:
    """Steps as `5+7=12,3*12=36`; None for any other text or a wrong result."""
    found = []
    for part in text.strip().split(","):
        match = _STEP.fullmatch(part.strip())
        if match is None:
            return None
        left, operation, right, result = int(match[1]), match[2], int(match[3]), int(match[4])
        if applied(left, operation, right) != result:
            return None
        found.append((left, operation, right, result))
    return found


def task_of(steps: Sequence[Step]) -> tuple[Counter[int], int] | None:
    """The numbers that steps begin with and the one that they leave; None where they use what is not there."""
    # every result but the last is an operand later, so the numbers given are the operands less those results
    given = Counter(n for left, _, right, _ in steps for n in (left, right))
    given.subtract(result for *_, result in steps[:-1])
    left_over = +given
    for left, _, right, result in steps:
        for operand in (left, right):
            if not left_over[operand]:
                return None
            left_over[operand] -= 1
        left_over[result] += 1
    target = steps[-1][3]
    return (+given, target) if +left_over == Counter([target]) else None


@checker
def reaches(test_input: str, expected: str, printed: str) -> bool:
    """The checker: the steps use the numbers of the expected ones, each once, and come to the same target."""
    steps, known = steps_of(printed), steps_of(expected)
    assert known, "a problem's own steps are right"
    return steps is not None and task_of(steps) is not None and task_of(steps) == task_of(known)


def canonical(steps: Sequence[Step]) -> str:
    """One text for all steps that write one expression (`countdown.canonical`)."""
    held: dict[int, list[countdown.Tree]] = {}

    def taken(number: int) -> countdown.Tree:
        own = held.get(number)
        return own.pop() if own else number

    for left, operation, right, result in steps:
        held.setdefault(result, []).append(countdown.joined(taken(left), operation, taken(right)))
    return countdown.written(held[steps[-1][3]][-1])


def written(steps: Sequence[Step]) -> str:
    """Steps as a box has them."""
    return ",".join(f"{left}{operation}{right}={result}" for left, operation, right, result in steps)


def children(state: Sequence[int], most: int = LARGEST) -> list[tuple[Step, tuple[int, ...]]]:
    """Every step from a state, and the state behind it, each once."""
    found = {}
    for i, one in enumerate(state):
        for j in range(i + 1, len(state)):
            left, right = max(one, state[j]), min(one, state[j])
            rest = [number for k, number in enumerate(state) if k not in (i, j)]
            for operation in "+-*/":
                result = applied(left, operation, right)
                changes_nothing = operation in "*/" and right == 1
                if result is not None and result <= most and not changes_nothing:
                    found[left, operation, right, result] = (*rest, result)
    return list(found.items())


@dataclass
class Search:
    """One search in depth first, written down as it is made."""

    target: int
    heuristic: str
    width: int
    characters: int
    rng: random.Random
    lines: list[str] = field(default_factory=list)
    _written: int = 0
    is_out: bool = False
    """There is no room for another line."""

    def run(self, state: tuple[int, ...]) -> list[Step] | None:
        """The steps to the target, or None: everything that it would try was tried, or there is no room."""
        if len(state) == 1:
            return [] if state[0] == self.target else None
        ordered = sorted(children(state), key=lambda child: self._worth(child[1]))[: self.width]
        for number, (step, after) in enumerate(ordered):
            if number and len(state) > 2:
                self._line("<" + " ".join(map(str, state)))
            rest = " ".join(map(str, after)) if len(after) > 1 else "!" if after[0] == self.target else "x"
            self._line(f"{written([step])} {rest}")
            if self.is_out:
                return None
            if (found := self.run(after)) is not None:
                return [step, *found]
        return None

    def _line(self, text: str) -> None:
        self._written += len(text) + 1
        self.is_out = self.is_out or self._written > self.characters
        if not self.is_out:
            self.lines.append(text)

    def _worth(self, state: Sequence[int]) -> tuple[float, float]:
        """Smaller is tried first."""
        chance = self.rng.random()
        if self.heuristic == "random":
            return 0.0, chance
        if self.heuristic == "total":
            return abs(sum(state) - self.target), chance
        if self.heuristic == "near":
            return min(abs(number - self.target) for number in state), chance
        factors = [f for f in range(2, self.target + 1) if self.target % f == 0]
        return min(abs(number - f) for number in state for f in factors), chance


def draw(rng: random.Random, scale: Scale, tier: Tier) -> tuple[str, Row]:
    """A problem without id and split, and what of it no two sets share: its numbers."""
    while True:
        many = rng.choice(scale.numbers[tier])
        given = [rng.randint(1, scale.largest) for _ in range(many)]
        state, steps = tuple(given), list[Step]()
        while len(state) > 1 and (found := children(state)):
            step, state = rng.choice(found)
            steps.append(step)
        if len(state) == 1 and state[0] in scale.targets:
            break
    row = {
        "kind": "math",
        "statement": f"Numbers: {' '.join(map(str, given))}\nTarget: {state[0]}",
        "checker": f"{__name__}:{reaches.__name__}",
        "answer": written(steps),
        "structure": f"search {tier}: {many} numbers",
    }
    return " ".join(map(str, sorted(given))), row


def answers(rng: random.Random, scale: Scale, row: Row) -> Iterator[str]:
    """Made-up answers without end: of the given share the search ends without the target."""
    known = steps_of(row["answer"])
    assert known
    task = task_of(known)
    assert task
    given = tuple(int(n) for n in row["statement"].split("\n")[0].split()[1:])
    while True:
        yield answer(rng, scale, given, task[1], rng.random() < scale.failing)


def answer(rng: random.Random, scale: Scale, given: tuple[int, ...], target: int, is_failing: bool) -> str:
    """An answer; of the wanted kind if one of so many searches is."""
    made = ""
    for _ in range(TRIES):
        room = scale.characters if not is_failing else rng.randrange(scale.characters // 4, scale.characters)
        search = Search(target, rng.choice(HEURISTICS), rng.choice(WIDTHS), room, rng)
        found = search.run(given)
        end = "stop" if found is None else f"\\boxed{{{written(found)}}}"
        made = "\n".join([*search.lines, end])
        if (found is None) == is_failing:
            break
    return made
