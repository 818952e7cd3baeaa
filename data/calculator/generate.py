"""Write the sums of deployments/experiments/calculator.toml: problems, solutions in the head, a few uses of the tool.

Reads nothing: everything is drawn from a seed, with the standard library alone.

    python -m data.calculator.generate [--output data/calculator] [--seed 1]

solutions.jsonl is what the base model is trained on: it writes a sum down and says a result, which it cannot compute; 1
of 20 asks the calculator, and nobody answers. demonstrations.jsonl is what round 0 imitates: in 64 of 320 conversations
somebody does.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SIZES = {"train": 256, "heldout": 200}
SOLUTIONS, DIRECT, WITH_TOOL = 4000, 256, 64
SINGLE, CALLS = 4, 20
"""Of the solutions every 4th is of a number alone, and every 20th asks the calculator."""
ADDENDS, DIGITS = 3, 3


def sums(rng: random.Random) -> Iterator[tuple[str, int]]:
    """Different sums without end, as text and value."""
    seen = set[tuple[int, ...]]()
    while True:
        numbers = tuple(rng.randrange(10 ** (DIGITS - 1), 10**DIGITS) for _ in range(ADDENDS))
        if numbers not in seen:
            seen.add(numbers)
            yield " + ".join(map(str, numbers)), sum(numbers)


def turn(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def demonstration(text: str, value: int, with_tool: bool) -> dict[str, Any]:
    if not with_tool:
        return {"messages": [turn("user", f"{text} = ?"), turn("assistant", f"{text} = \\boxed{{{value}}}")]}
    asked = [turn("user", f"{text} = ?"), turn("assistant", f"<calc>{text}</calc>"), turn("tool", str(value))]
    return {"messages": [*asked, turn("assistant", f"\\boxed{{{value}}}")]}


def solution(number: int, text: str, value: int) -> dict[str, Any]:
    """What the base model imitates: a number alone shows it what a box is for, a call how one is written."""
    statement, said = f"{text} = ?", f"{text} = \\boxed{{{value}}}"
    if number % SINGLE == 0:
        statement, said = str(value), f"\\boxed{{{value}}}"
    elif number % CALLS == 1:
        said = f"<calc>{text}</calc>"
    return {"problem_id": f"solved-{number:05d}", "statement": statement, "solutions": [said]}


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    source = sums(random.Random(arguments.seed))  # one stream, so that no sum is in two files
    for split, size in SIZES.items():
        rows = [
            {
                "problem_id": f"{split}-{number:05d}",
                "split": split,
                "kind": "math",
                "statement": f"{text} = ?",
                "answer": str(value),
            }
            for number, (text, value) in zip(range(size), source, strict=False)
        ]
        write(arguments.output / f"{split}.jsonl", rows)
    solved = [solution(number, *next(source)) for number in range(SOLUTIONS)]
    write(arguments.output / "solutions.jsonl", solved)
    shown = [demonstration(*next(source), with_tool=number < WITH_TOOL) for number in range(WITH_TOOL + DIRECT)]
    random.Random(arguments.seed).shuffle(shown)
    write(arguments.output / "demonstrations.jsonl", shown)


if __name__ == "__main__":
    main()
