"""How large the mixture is: one scale for two cores, one for a GPU. Reads and writes nothing.

A tier says how hard a problem is. "solved" problems have the solutions that the base model is trained on, "usual" ones
are trained on by reinforcement, "harder" ones are only measured on.
"""

from dataclasses import dataclass
from typing import Literal

Tier = Literal["solved", "usual", "harder"]
FAMILIES = ("search", "dependencies", "programs")


@dataclass(frozen=True)
class Scale:
    """Sizes of the problems, of the sets, and of what is wrong in the made-up solutions."""

    name: str
    numbers: dict[Tier, tuple[int, ...]]
    """Numbers that a search problem gives."""
    largest: int
    """Largest of them."""
    targets: range
    characters: int
    """Most characters of a written search; the tokens are fewer."""
    failing: float
    """Share of written searches that end without the target."""
    modulus: int
    operations: dict[Tier, tuple[int, ...]]
    """Operations that a dependency problem needs."""
    slips: float
    """Probability that a line of a made-up derivation is one too low."""
    lines: dict[Tier, tuple[int, ...]]
    """Operations of a list program."""
    mistaken: float
    """Share of made-up programs with one operation of another program."""
    solved: dict[str, int]
    """Solutions of each family, one for each problem."""
    problems: dict[str, int]
    """Problems of a family in each set; the held-out set has so many of each of the two tiers."""


CORES = Scale(
    name="cores",
    numbers={"solved": (3, 4), "usual": (4,), "harder": (5,)},
    largest=9,
    targets=range(10, 31),
    characters=240,
    failing=1 / 3,
    modulus=7,
    operations={"solved": (1, 2, 3, 4, 5), "usual": (3, 4, 5, 6), "harder": (7, 8)},
    slips=0.05,
    lines={"solved": (1, 2), "usual": (2,), "harder": (2, 3)},
    mistaken=0.3,
    solved={"search": 60_000, "dependencies": 60_000, "programs": 40_000},
    problems={"train": 512, "validation": 40, "heldout": 100},
)
GPU = Scale(
    name="gpu",
    numbers={"solved": (4, 5), "usual": (4,), "harder": (5,)},
    largest=25,
    targets=range(10, 100),
    characters=900,
    failing=1 / 3,
    modulus=23,
    operations={"solved": tuple(range(2, 11)), "usual": tuple(range(4, 9)), "harder": (9, 10, 11, 12)},
    slips=0.05,
    lines={"solved": (1, 2, 3), "usual": (1, 2), "harder": (2, 3)},
    mistaken=0.3,
    solved={"search": 160_000, "dependencies": 140_000, "programs": 100_000},
    problems={"train": 1_366, "validation": 80, "heldout": 150},
)
SCALES = {scale.name: scale for scale in (CORES, GPU)}
