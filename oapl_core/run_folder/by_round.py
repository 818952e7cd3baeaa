"""Measurements of a run by round, as far as it got: what evaluations during the run wrote to the ledger."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from oapl_core.run_folder.run import Run


@dataclass(frozen=True)
class RoundMeasures:
    """One checkpoint on the problems of one split."""

    round: int
    """Round after which it was measured, counted from 0."""
    rounds_trained: int
    """Number of rounds that made the checkpoint; 0: the base model."""
    checkpoint: str
    split: str
    measures: Mapping[str, Any]
    """Numbers as the ledger has them (``measures.measures``)."""


def by_round(run: Run) -> Iterator[RoundMeasures]:
    """Yield what was measured during the run, by round; nothing of its end, and nothing before the first evaluation."""
    for number, details in _details(run):
        for split in ("validation", "heldout"):
            for checkpoint, measures in details.get(split, {}).items():
                trained = 0 if checkpoint == "base" else number + 1
                yield RoundMeasures(number, trained, checkpoint, split, measures)


def deciding(run: Run) -> list[tuple[int, float]]:
    """List each evaluated round with the mean reward of its last epoch, in order.

    On validation problems, where there are any, else on held-out ones. The last round of a run is not among them.
    """
    return [(number, float(details["deciding"]["mean_reward"])) for number, details in _details(run)]


def _details(run: Run) -> Iterator[tuple[int, Mapping[str, Any]]]:
    made = run.ledger.artifacts()
    for number in run.config.interim_rounds:
        if entry := made.get(run.name(run.interim(number))):
            yield number, entry.details
