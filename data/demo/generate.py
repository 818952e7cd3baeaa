"""Write the demo's problem set: train.jsonl, validation.jsonl, heldout.jsonl and solutions.jsonl.

Reads nothing: everything is drawn from a seed, with the standard library alone.

    python -m data.demo.generate [--train 960] [--validation 80] [--heldout 150] [--solutions 6] [--seed 1] [--output .]

A structure is the ordered list of a problem's operations. Some ordered pairs of neighbouring operations are reserved:
every held-out problem contains at least one of them, no training or validation problem contains any. solutions.jsonl
has made-up, partly wrong solutions of the training problems: what the base model is trained on.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from data.demo import compositions, programs

N_TESTS = 6
KINDS = ("stdin", "function", "math")
RESERVED_SHARE = 0.15
"""Share of the ordered pairs that only held-out problems may contain."""

Row = dict[str, Any]
Draw = tuple[Row, Any]
"""A problem row and what its solutions are made from: a chain of steps, or functions."""


def neighbours(structure: str) -> set[tuple[str, str]]:
    """The ordered pairs of neighbouring operations in a structure label such as `stdin: keep_even > add > sum`."""
    family, _, chain = structure.partition(": ")
    names = chain.split(" > ")
    marked = [f"math {name}" for name in names] if family == "math" else names
    return set(itertools.pairwise(marked))


def reserved_pairs(rng: random.Random) -> set[tuple[str, str]]:
    """The pairs kept for the held-out problems."""
    steps = [operation.name for operation in programs.OPERATIONS]
    after = [*steps, *(ending.name for ending in programs.ENDINGS)]
    functions = [f"math {name}" for name in sorted(compositions.P_RIGHT)]
    pairs = [(a, b) for a in steps for b in after if a != b]
    of_functions = [(a, b) for a in functions for b in functions if a != b]
    return {
        *rng.sample(pairs, round(RESERVED_SHARE * len(pairs))),
        *rng.sample(of_functions, round(RESERVED_SHARE * len(of_functions))),
    }


def draw_problem(rng: random.Random, kind: str) -> Draw | None:
    """One problem without id and split, or None when this draw is useless."""
    row: Row = {"kind": kind, "starter_code": None, "entry_point": None, "tests": [], "answer": None}
    if kind == "math":
        functions = compositions.draw(rng, rng.choice((2, 3)))
        if functions is None:
            return None
        row |= {"statement": compositions.statement(functions), "answer": compositions.expanded(functions)}
        return {**row, "structure": "math: " + " > ".join(function.name for function in functions)}, functions
    chain = programs.draw_chain(rng, rng.choice((2, 3)))
    tests = programs.draw_tests(rng, kind, chain, N_TESTS)
    if tests is None:
        return None
    row |= {"statement": programs.statement(kind, chain), "tests": tests}
    row |= {"structure": f"{kind}: " + " > ".join(step.operation.name for step in chain)}
    if kind == "function":
        row |= {"starter_code": "def solve(a):", "entry_point": "solve"}
    return row, chain


def draw_split(
    rng: random.Random, split: str, n: int, reserved: set[tuple[str, str]], seen: set[str]
) -> Iterator[Draw]:
    """`n` problems of a split, the kinds in turn; `seen` holds the statements used so far, in any split."""
    made = 0
    while made < n:
        drawn = draw_problem(rng, KINDS[made % len(KINDS)])
        if drawn is None:
            continue
        row, source = drawn
        is_heldout = bool(neighbours(row["structure"]) & reserved)
        if row["statement"] in seen or is_heldout != (split == "heldout"):
            continue
        seen.add(row["statement"])
        yield {"problem_id": f"{split}-{made:05d}", "split": split, **row}, source
        made += 1


def draw_solutions(rng: random.Random, problems: Iterable[Draw], per_problem: int) -> Iterator[Row]:
    """Made-up solutions of each problem, each line right with the probability of its operation."""
    for row, source in problems:
        made = compositions if row["kind"] == "math" else programs
        yield {
            "problem_id": row["problem_id"],
            "statement": row["statement"],
            "solutions": [made.draw_answer(rng, row["kind"], source) for _ in range(per_problem)],
        }


def write(path: Path, rows: Iterable[Row]) -> None:
    """JSON lines, one row each."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    print(f"wrote {path} ({path.stat().st_size / 1e6:.2f} MB)")


def main() -> None:
    """Draw the three splits and the solutions, and write them."""
    parser = argparse.ArgumentParser(description="Write the demo's problem set.")
    parser.add_argument("--train", type=int, default=960, help="training problems (default 960)")
    parser.add_argument("--validation", type=int, default=80, help="validation problems (default 80)")
    parser.add_argument("--heldout", type=int, default=150, help="held-out problems (default 150)")
    parser.add_argument("--solutions", type=int, default=6, help="made-up solutions per training problem (default 6)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, default=Path(__file__).resolve().parent, help="folder (default: here)")
    options = parser.parse_args()
    reserved = reserved_pairs(random.Random(f"{options.seed} pairs"))
    seen: set[str] = set()
    options.output.mkdir(parents=True, exist_ok=True)
    for split in ("train", "validation", "heldout"):
        n = getattr(options, split)
        problems = list(draw_split(random.Random(f"{options.seed} {split}"), split, n, reserved, seen))
        write(options.output / f"{split}.jsonl", (row for row, _ in problems))
        if split == "train":
            solutions = draw_solutions(random.Random(f"{options.seed} solutions"), problems, options.solutions)
            write(options.output / "solutions.jsonl", solutions)


if __name__ == "__main__":
    main()
