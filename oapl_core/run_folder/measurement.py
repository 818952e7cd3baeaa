"""One measured checkpoint, as readers of a run get it: report, trackers, watch page, rules of `[stop]`."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self


@dataclass(frozen=True)
class Measurement:
    """One checkpoint on the problems of one split."""

    axis: str
    """Series that the numbers are a point of, for trackers: `heldout`, `validation` or one of an optional stage."""
    step: int
    """Place in the series. Of `validation`: epochs of the last round; of all others: rounds that made the checkpoint
    (the base model has 0)."""
    round: int | None
    """Round after which it was measured, counted from 0; None: at the end of the run."""
    checkpoint: str
    split: str
    measures: Mapping[str, Any]
    """Numbers as the ledger has them (``oapl_core/evaluation/measures.py: measures``)."""
    decides: bool = False
    """Whether evaluations of the run are compared by its mean reward."""
    decoding: str = ""
    """Words for temperature and top-p where they are others than `[evaluation]` has."""

    def each(self) -> Iterator[Self]:
        """Yield it, then the same checkpoint in each way of `evaluation.also`, a series of its own."""
        yield self
        for name, measures in self.measures.get("also", {}).items():
            axis = f"{self.axis}_{name.replace(',', '').replace(' ', '_')}"
            of = {"axis": axis, "checkpoint": f"{self.checkpoint}, {name}", "decoding": name}
            yield replace(self, measures=measures, decides=False, **of)
