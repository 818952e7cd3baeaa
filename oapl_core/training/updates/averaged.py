"""A moving average of the trained weights as pi_old: the proximal policy of PPO-EWMA (arXiv 2110.00641).

    theta_old = sum_i beta^(n-i) theta_i / sum_i beta^(n-i),      i = 0 .. n updates;  theta_0: first of the round

Before each step its sequences are scored with the average in the weights' place, in a pass without gradient. The
average is float32, of what this rank steps: 4 bytes for each weight, divided by ZeRO as the optimiser is. A state has
it in the pieces of weights (``pieces.py``), so any number of ranks and any ZeRO stage continues it. A round that takes
over the optimiser of the round before continues its average, too, if there is one.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from oapl_core.training.metrics import Metrics
from oapl_core.training.saving.partition import Partition
from oapl_core.training.saving.pieces import WEIGHT, read_pieces, write_pieces
from oapl_core.training.steps import NONE_OLD, LogRatios, Trainer

if TYPE_CHECKING:
    from oapl_core.objectives.clipped.ppo_ewma import PpoEwma


class Average:
    """Exponentially weighted moving average of the float32 weights that this rank steps."""

    def __init__(self, partition: Partition) -> None:
        """Begin with the present weights."""
        self._partition = partition
        self._begin()

    def _begin(self) -> None:
        self.updates = 0
        self._mean = {piece.name: piece.values[WEIGHT].clone() for piece in self._partition.pieces()}

    def follow(self, decay: float) -> None:
        """Take in the weights after an update, with weight 1 beside ``decay`` times the earlier ones' weights."""
        self.updates += 1
        total = sum(decay**age for age in range(self.updates + 1))
        for piece in self._partition.pieces():
            # decay times the total before and 1 now make the total, so this is their weighted mean
            self._mean[piece.name].lerp_(piece.values[WEIGHT], 1.0 / total)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Compute with the average in the place of the weights, which are the same bits afterwards."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    def _exchange(self) -> None:
        for piece in self._partition.pieces():
            weights, mean = piece.values[WEIGHT], self._mean[piece.name]
            kept = weights.clone()
            weights.copy_(mean)
            mean.copy_(kept)
        self._partition.renew()

    def save(self, folder: Path, rank: int, ranks: int) -> dict[str, str]:
        """Write this rank's pieces; returns the SHA-256 of its file by its name."""
        folder.mkdir(exist_ok=True)
        name, whole = f"rank_{rank:05d}.safetensors", {piece.name: piece for piece in self._partition.pieces()}
        own = []
        for piece in self._partition.own_pieces(rank, ranks):
            first = piece.start - whole[piece.name].start
            mean = self._mean[piece.name][first : first + len(piece.values[WEIGHT])]
            own.append(replace(piece, values={WEIGHT: mean}))
        return {name: write_pieces(folder / name, own, self.updates)}

    def load(self, folder: Path) -> None:
        """Continue a saved average, or begin with the present weights where there is none.

        Raises:
            DataError: it is of another model.
        """
        if not folder.is_dir():
            self._begin()
            return
        pieces = [replace(piece, values={WEIGHT: self._mean[piece.name]}) for piece in self._partition.pieces()]
        self.updates = read_pieces(folder, self._partition.sizes, pieces)


@cache
def averaging(kind: type[Trainer]) -> type[Trainer]:
    """Derive a trainer from ``kind`` whose pi_old is the moving average of its weights."""

    @dataclass(frozen=True)
    class Averaging(kind):  # type: ignore[valid-type, misc]
        __doc__ = kind.__doc__
        objective: "PpoEwma"

        def __post_init__(self) -> None:
            # once an engine: a copy of this trainer with another field shares it
            if "average" not in self.engine.beside:
                self.engine.beside["average"] = Average(self.engine.partition)

        def step(self, batch: Sequence[int], lengths: Sequence[int], rate: float, old: LogRatios = NONE_OLD) -> Metrics:
            """Score ``batch`` with the average, run the step around it, and let the average follow."""
            began, average = time.monotonic(), self.engine.beside["average"]
            if average.updates:  # before the first update the policy itself is the average
                with average.in_place():
                    old = self.log_ratios(batch)
            scored_s = time.monotonic() - began
            metrics: Metrics = super().step(batch, lengths, rate, old)
            if not metrics["skipped"]:
                average.follow(self.objective.decay)
            return metrics | {"seconds": metrics["seconds"] + scored_s}

    Averaging.__name__ = Averaging.__qualname__ = kind.__name__
    return Averaging
