"""`python -m bench.harnesses DIR`: a tiny model that adds whole numbers, half of the time correctly, and its problems.

For docs/benchmarks/harnesses.md: answers that are whole numbers, where exact match and our verifier ask the same. Reads
nothing; writes DIR/model (a Hugging Face folder) and DIR/sums.jsonl (100 held-out problems).
"""

import json
import random
import sys
from pathlib import Path

from oapl_core.pretraining.pretrain import Solved, build
from oapl_core.settings.pretrain import PretrainConfig

_LARGEST, _HELDOUT, _SHOWN_WRONG = 30, 100, 0.35


def statement(first: int, second: int) -> str:
    """What is asked."""
    return f"Find {first} + {second}"


def solutions(first: int, second: int, rng: random.Random) -> list[str]:
    """Six, of which about one in three is beside the sum by one or ten, so that the model has both to say."""
    beside = (0 if rng.random() > _SHOWN_WRONG else rng.choice((-10, -1, 1, 10)) for _ in range(6))
    return [f"\\boxed{{{first + second + one}}}" for one in beside]


def main(folder: Path) -> None:
    """Write model and problems; the same numbers each time."""
    rng = random.Random(0)
    pairs = [(a, b) for a in range(_LARGEST) for b in range(_LARGEST)]
    rng.shuffle(pairs)
    heldout, train = pairs[:_HELDOUT], pairs[_HELDOUT:]
    rows = [
        {
            "problem_id": f"sum-{a}-{b}",
            "split": "heldout",
            "kind": "math",
            "statement": statement(a, b),
            "answer": str(a + b),
        }
        for a, b in heldout
    ]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    solved = [Solved(statement=statement(a, b), solutions=solutions(a, b, rng)) for a, b in train]
    config = PretrainConfig(
        solutions=folder / "unused.jsonl", epochs=6, hidden_size=64, intermediate_size=192, layers=2, heads=2
    )
    build(solved, config, 0, folder / "model")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
