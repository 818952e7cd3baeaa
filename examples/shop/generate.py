"""Write the data of examples/shop: problems, solutions for the base model, conversations to be imitated.

Reads nothing: everything is drawn from a seed, with the standard library alone.

    python examples/shop/generate.py
"""

import json
import random
from collections.abc import Iterator
from itertools import permutations
from pathlib import Path
from typing import Any

ITEMS = (
    "apple bread candle egg fig grape honey ink jam kiwi lemon melon nut oil pear quince rice soap tea vase wine yeast"
).split()
SIZES = {"train": 128, "heldout": 64}
SOLUTIONS, DEMONSTRATIONS = 2400, 256
FOLDER = Path(__file__).parent


def statement(wanted: str, other: str) -> str:
    """What the problem asks."""
    return f"Buy one {wanted}, no {other}."


def purchases(rng: random.Random) -> Iterator[tuple[str, str]]:
    """Every two items in any order, shuffled: no purchase is in two files."""
    pairs = list(permutations(ITEMS, 2))
    rng.shuffle(pairs)
    return iter(pairs)


def problems(source: Iterator[tuple[str, str]], rng: random.Random, split: str, count: int) -> Iterator[dict[str, Any]]:
    """Two items with prices from 1 to 9, and which one is bought."""
    for number, (wanted, other) in zip(range(count), source, strict=False):
        prices = {wanted: rng.randint(1, 9), other: rng.randint(1, 9)}
        yield {
            "problem_id": f"{split}-{number:03d}",
            "kind": "math",  # the last turn's box is compared with the answer
            "statement": statement(wanted, other),
            "answer": str(prices[wanted]),
            "info": {"prices": prices},
        }


def solution(number: int, rng: random.Random) -> dict[str, Any]:
    """What the base model learns words from: it asks for a price, or says one that it cannot know."""
    wanted, other = rng.sample(ITEMS, 2)
    said = f"\\boxed{{{rng.randint(1, 9)}}}" if number % 2 else f"<price>{wanted}</price>"
    return {"problem_id": f"solved-{number}", "statement": statement(wanted, other), "solutions": [said]}


def demonstration(problem: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """A conversation; one of three asks for the price, the others guess."""
    said = [{"role": "user", "content": problem["statement"]}]
    if rng.random() < 1 / 3:
        wanted = next(iter(problem["info"]["prices"]))
        said.append({"role": "assistant", "content": f"<price>{wanted}</price>"})
        said.append({"role": "tool", "content": problem["answer"]})
        said.append({"role": "assistant", "content": f"\\boxed{{{problem['answer']}}}"})
    else:
        said.append({"role": "assistant", "content": f"\\boxed{{{rng.randint(1, 9)}}}"})
    return {"messages": said}


def main() -> None:
    """Write all four files."""
    rng = random.Random(1)
    source = purchases(rng)
    rows = {split: list(problems(source, rng, split, count)) for split, count in SIZES.items()}
    rows["solutions"] = [solution(number, rng) for number in range(SOLUTIONS)]
    rows["demonstrations"] = [demonstration(one, rng) for one in problems(source, rng, "shown", DEMONSTRATIONS)]
    for name, lines in rows.items():
        (FOLDER / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    main()
