"""Ranks and ZeRO stage that made which optimiser steps: a round may change them between two steps.

Each step's metrics have them; the ledger's details of a checkpoint have the spans of its epoch. Reads the ledger.
"""

from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Any

from oapl_core.run_folder.run import Run

TRAINED_ON = "trained_on"
"""Key in the details of a checkpoint."""


def spans(steps: Iterable[Mapping[str, Any]]) -> list[dict[str, int]]:
    """Join consecutive steps that the same number of ranks made with the same ZeRO stage.

    Args:
        steps: metrics of optimiser steps, with ``step``, ``ranks`` and ``zero_stage``.
    """
    found = []
    for (ranks, stage), members in groupby(steps, key=lambda one: (one["ranks"], one["zero_stage"])):
        numbers = [one["step"] for one in members]
        found.append({"first": numbers[0], "last": numbers[-1], "ranks": ranks, "zero_stage": stage})
    return found


def told(run: Run, number: int) -> str:
    """Tell on how many ranks the steps of round ``number`` were made; empty where one rank made all of them."""
    artifacts = run.ledger.artifacts()
    epochs = range(1, run.config.rounds[number].epochs + 1)
    entries = [artifacts.get(run.name(run.checkpoint(number, epoch))) for epoch in epochs]
    steps = [span for entry in entries if entry for span in entry.details.get(TRAINED_ON, ())]
    # spans of the ledger end with their epoch; a person cares where ranks changed
    joined = []
    for _, same in groupby(steps, key=lambda one: (one["ranks"], one["zero_stage"])):
        first, *others = same
        joined.append({**first, "last": (others or [first])[-1]["last"]})
    if len(joined) < 2 and all(one["ranks"] == 1 for one in joined):
        return ""
    return ", ".join(
        f"steps {one['first']}-{one['last']} on {one['ranks']} rank{'s' * (one['ranks'] > 1)} with ZeRO "
        f"{one['zero_stage']}"
        for one in joined
    )
