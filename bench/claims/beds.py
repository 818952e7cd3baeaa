"""Test beds 2 and 3 of docs/benchmarks/claims_beds.md, and bed 3 of factorial.md: problem sets, bases and prompts.

``python -m bench.claims.beds --to DIR [--only countdown ...] [--seeds 0 1 2]`` writes DIR/<bed>/*.jsonl and, for
each seed, the run folder DIR/runs/<bed>-seedN up to its base model and prompts: bench/claims/<bed>.toml with these
sets. What is there is left alone. Times stand in claims_beds.md.

The base model is trained on solutions of problems that are in none of the other sets.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.claims import chains, countdown

if TYPE_CHECKING:
    from oapl_core.run_folder.run import Run

Row = dict[str, Any]
HERE = Path(__file__).resolve().parent
SPLITS = {"solutions": 0, "train": 1024, "validation": 80, "heldout": 500}
"""Problems of each set; of solutions see below."""
COUNTDOWN_SOLVED, COUNTDOWN_SOLUTIONS = 1600, 32
"""Problems that the base model is trained on, and solutions of each."""
CHAINS_SOLVED, CHAINS_LENGTHS = 40000, (*range(2, 9), *range(2, 25))
"""Problems that the base model is trained on, one solution each, and how many steps they have."""
SHORT_LENGTHS = range(2, 6)
"""Steps of what the bases of short chains are trained on; one takes two to four minutes of a core."""
LENGTHS = (10, 24)
"""Steps of the chains that are trained and measured on: a set of each."""


def main() -> None:
    """Make what is missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--to", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=list(SETS), choices=list(SETS))
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    options = parser.parse_args()
    for bed in options.only:
        write_sets(bed, options.to.resolve())
        for seed in options.seeds:
            prepare(bed, options.to.resolve(), seed)


def write_sets(bed: str, to: Path) -> None:
    """The problem sets of a bed; those that are there stay."""
    if (to / bed).exists():
        return
    draft = to / f".tmp-{bed}"
    draft.mkdir(parents=True, exist_ok=True)
    for name, rows in SETS[bed]():
        (draft / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    draft.rename(to / bed)


def countdown_sets(share: float = 1.0) -> Iterator[tuple[str, Iterable[Row]]]:
    """Each set and its rows; `share` makes smaller ones. No two sets have problems of the same numbers."""
    unused = countdown.number_sets(random.Random("countdown numbers"))
    for split, many in SPLITS.items():
        n, rng = round(share * (many or COUNTDOWN_SOLVED)), random.Random(f"countdown {split}")
        drawn = list(itertools.islice(countdown.draw(rng, unused), n))
        assert len(drawn) == n, "there are no more sets of numbers"
        if many:
            yield split, numbered(split, (row for row, _ in drawn))
        else:
            solutions = [[countdown.shown(rng, found) for _ in range(COUNTDOWN_SOLUTIONS)] for _, found in drawn]
            yield split, [solved(row, own) for (row, _), own in zip(drawn, solutions, strict=True)]


def chains_sets(share: float = 1.0) -> Iterator[tuple[str, Iterable[Row]]]:
    """Each set and its rows; `share` makes smaller ones."""
    yield "solutions", chains_solved(CHAINS_SOLVED, CHAINS_LENGTHS, share)
    for length in LENGTHS:
        for split, rows in chains_of(length, share):
            yield f"{split}-{length}", rows


def short_sets(kind: chains.Kind, many: int, length: int, share: float = 1.0) -> Iterator[tuple[str, Iterable[Row]]]:
    """The sets of a bed of short chains: ``many`` solved ones, and those of ``length`` steps that are measured on."""
    yield "solutions", chains_solved(many, SHORT_LENGTHS, share, kind)
    yield from chains_of(length, share, kind)


def chains_solved(many: int, lengths: Sequence[int], share: float, kind: chains.Kind = chains.DIGITS) -> list[Row]:
    """What a base model is trained on."""
    rng = random.Random("chains solutions")
    made = [chains.draw(rng, rng.choice(lengths), kind) for _ in range(round(share * many))]
    return [solved(row, [chains.shown(rng, *source, kind)]) for row, source in made]


def chains_of(length: int, share: float, kind: chains.Kind = chains.DIGITS) -> Iterator[tuple[str, list[Row]]]:
    """The sets that are trained and measured on."""
    for split, many in SPLITS.items():
        rng = random.Random(f"chains {length} {split}")
        rows = [chains.draw(rng, length, kind)[0] for _ in range(round(share * many))]
        if many:
            yield split, numbered(split, rows)


def numbered(split: str, rows: Iterable[Row]) -> list[Row]:
    """With id and split."""
    return [{"problem_id": f"{split}-{number:05d}", "split": split, **row} for number, row in enumerate(rows)]


def solved(row: Row, solutions: list[str]) -> Row:
    """A line of what a base model is trained on."""
    return {"statement": row["statement"], "solutions": solutions}


VARIANTS: dict[str, dict[str, tuple[str, ...]]] = {
    "countdown": {"": ()},
    "chains": {"-24": (), "-10": ("name=chains-10", "sampling.max_tokens=96")},
    "numbers": {"": ()},
    "habits": {"": ()},
}
"""Run folders of a bed that share a base model: the ending of their sets, and what differs from the file."""
SETS: dict[str, Callable[..., Iterator[tuple[str, Iterable[Row]]]]] = {
    "countdown": countdown_sets,
    "chains": chains_sets,
    "numbers": partial(short_sets, chains.NUMBERS, 20_000, 5),
    "habits": partial(short_sets, chains.HABITS, 12_000, 4),
}


def found(bed: str, to: Path, seed: int) -> Iterator[Run]:
    """Runs of a base, not yet opened, with their folders below ``to``."""
    from oapl_core.run_folder.opening import find

    shared = [f"seed={seed}", f'runs_dir="{to}/runs"', f'cache_dir="{to}/cache"']
    shared.append(f'pretrain.solutions="{to}/{bed}/solutions.jsonl"')
    for ending, changes in VARIANTS[bed].items():
        sets = [f'problems.{split}="{to}/{bed}/{split}{ending}.jsonl"' for split, many in SPLITS.items() if many]
        yield find(HERE / f"{bed}.toml", [*shared, *sets, *changes])


def prepare(bed: str, to: Path, seed: int) -> None:
    """The run folders of a base, by the pipeline's own stages."""
    from oapl_core.launch import run_stage
    from oapl_core.planning.plan import finished, preparation
    from oapl_core.run_folder.opening import opened

    for one in found(bed, to, seed):
        with opened(one, print) as run:
            make_base(run)
            for step in preparation(run.config):
                if step not in finished(run):
                    run_stage(run, step.verb, step.arguments)


def make_base(run: Run) -> None:
    """Where there is a GPU, the base model on it: a minute instead of an hour. The stage then finds it in the cache."""
    import torch

    from oapl_core.pretraining.pretrain import pretrain

    if torch.cuda.is_available():
        with torch.device("cuda"):
            pretrain(run)


if __name__ == "__main__":
    main()
