"""Problem sets and made-up solutions of the mixture: ``python -m bench.claims.mixture.sets SCALE --to DIR``.

Writes DIR/SCALE/{train,validation,heldout}.jsonl, and DIR/SCALE/solutions.jsonl from pieces of some thousand rows. Each
piece is drawn from a seed of its own, so a killed command loses the pieces in hand, and any number of processes makes
the same file. What is there is left alone.

Sets are disjoint by content. What identifies a problem is hashed (the numbers of a search, the definitions of a
dependency problem, what a program does), and the hash says which set it may be in.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import sys
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, Protocol

from bench.claims.mixture import dependencies, programs, search
from bench.claims.mixture.scales import FAMILIES, SCALES, Scale, Tier

Row = dict[str, Any]
SHARES = {"solutions": 60, "train": 20, "validation": 5, "heldout": 15}
"""Per cent of what may be asked, by the set that may ask it."""
PIECE = 4000
"""Solutions of a piece."""


class Family(Protocol):
    """What a module of a family has."""

    def draw(self, rng: random.Random, scale: Scale, tier: Tier) -> tuple[str, Row]:
        """A problem without id and split, and what of it no two sets share."""

    def answers(self, rng: random.Random, scale: Scale, row: Row) -> Iterator[str]:
        """Made-up answers without end."""


MODULES: Mapping[str, Family] = {"search": search, "dependencies": dependencies, "programs": programs}


def main() -> None:
    """Write what is missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scale", choices=list(SCALES))
    parser.add_argument("--to", type=Path, required=True)
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()
    write(SCALES[options.scale], options.to / options.scale, options.processes)


def write(scale: Scale, to: Path, processes: int = 1) -> None:
    """Every set of a scale."""
    to.mkdir(parents=True, exist_ok=True)
    for split in scale.problems:
        if not (to / f"{split}.jsonl").exists():
            write_lines(to / f"{split}.jsonl", problems(scale, split))
    if not (to / "solutions.jsonl").exists():
        write_solutions(scale, to, processes)


def write_lines(path: Path, rows: Iterable[Row]) -> None:
    """JSON lines, all or none."""
    draft = path.with_name(f".tmp-{os.getpid()}-{path.name}")
    draft.write_text("".join(json.dumps(row) + "\n" for row in rows))
    draft.rename(path)


def set_of(family: str, key: str) -> str:
    """The set that may have a problem of this content."""
    place = int.from_bytes(hashlib.sha256(f"{family}: {key}".encode()).digest()[:8]) % 100
    for name, share in SHARES.items():
        place -= share
        if place < 0:
            return name
    raise AssertionError(SHARES)


def drawn(rng: random.Random, scale: Scale, family: str, tier: Tier, split: str) -> Row:
    """A problem that the set may have."""
    while True:
        key, row = MODULES[family].draw(rng, scale, tier)
        if set_of(family, key) == split:
            return row


def problems(scale: Scale, split: str) -> list[Row]:
    """A set without any statement twice; the held-out one has both tiers."""
    tiers: tuple[Tier, ...] = ("usual", "harder") if split == "heldout" else ("usual",)
    columns = {(tier, family): _distinct(scale, family, tier, split) for tier in tiers for family in FAMILIES}
    found = []
    for number in range(scale.problems[split]):
        # in turn, so that the first problems of a set are of every family and tier
        for (tier, family), rows in columns.items():
            name = f"{split}-{tier}-{family}-{number:05d}"
            found.append({"problem_id": name, "split": split, **asked(rows[number])})
    return found


def _distinct(scale: Scale, family: str, tier: Tier, split: str) -> list[Row]:
    rng = random.Random(f"mixture {scale.name} {family} {tier} {split}")
    found: dict[str, Row] = {}
    while len(found) < scale.problems[split]:
        row = drawn(rng, scale, family, tier, split)
        found.setdefault(row["statement"], row)
    return list(found.values())


def asked(row: Row) -> Row:
    """A problem's row as a set has it: a program's own solution is no column of it."""
    return {name: value for name, value in row.items() if name != "answer" or row["kind"] == "math"}


def write_solutions(scale: Scale, to: Path, processes: int) -> None:
    """All pieces that are missing, then one file of them in an order of the families' own mixture."""
    folder = to / "pieces"
    folder.mkdir(exist_ok=True)
    jobs = [
        (scale, family, number, min(PIECE, scale.solved[family] - PIECE * number), folder)
        for family in FAMILIES
        for number in range(-(-scale.solved[family] // PIECE))
    ]
    missing = [job for job in jobs if not piece_path(*job[1:3], folder).exists()]
    with ProcessPoolExecutor(processes) as pool:
        for done, _ in enumerate(pool.map(_write_piece, missing), 1):
            print(f"solutions: {done}/{len(missing)} pieces", file=sys.stderr, flush=True)
    pieces = [piece_path(family, number, folder) for _, family, number, *_ in jobs]
    rows = [line for path in pieces for line in path.read_text().splitlines(keepends=True)]
    random.Random(f"mixture {scale.name}").shuffle(rows)
    draft = to / ".tmp-solutions.jsonl"
    draft.write_text("".join(rows))
    draft.rename(to / "solutions.jsonl")


def piece_path(family: str, number: int, folder: Path) -> Path:
    """Where a piece lies."""
    return folder / f"{family}-{number:04d}.jsonl"


def _write_piece(job: tuple[Scale, str, int, int, Path]) -> None:
    scale, family, number, rows, folder = job
    write_lines(piece_path(family, number, folder), piece(scale, family, number, rows))


def piece(scale: Scale, family: str, number: int, rows: int) -> Iterator[Row]:
    """Lines of what a base model is trained on, one answer to each problem."""
    rng = random.Random(f"mixture {scale.name} {family} solutions {number}")
    for _ in range(rows):
        row = drawn(rng, scale, family, "solved", "solutions")
        answer = next(MODULES[family].answers(rng, scale, row))
        yield {"statement": row["statement"], "solutions": [answer]}


if __name__ == "__main__":
    main()
