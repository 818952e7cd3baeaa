"""The arms of the mixture: five methods, each with the same three lags. Reads and writes nothing.

docs/benchmarks/mixture.md has the questions and their criteria. An arm is called METHOD-lagL; its rate is the one of
`RATES` that was best on validation problems at a lag of 50 (`tuning`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bench.claims.algorithm_1 import Arm
from oapl_core.objectives import Method, Oapl
from oapl_core.objectives.clipped.grpo import GrpoTokenIs
from oapl_core.objectives.oapl_variant import OaplVariant
from oapl_core.objectives.supervised import Rft
from oapl_core.objectives.topr import Topr

LAGS = (1, 50, 400)
"""Optimiser steps that the rollouts of one synchronisation last for."""
METHODS: Mapping[str, Method] = {
    "oapl": Oapl(regression_temperature=0.1),
    "positives": OaplVariant(regression_temperature=0.01, learns_from_bad=False),
    "grpo": GrpoTokenIs(),
    "topr": Topr(),
    "rft": Rft(),
}
"""`positives` closed more of the gap to TOPR than any other OAPL of docs/benchmarks/factorial.md, at this beta2."""
RATES = (3.125e-5, 6.25e-5, 1.25e-4)
TUNED_AT, TUNING_STEPS, TUNING_SEED = 50, 200, 1000
"""Lag, steps and seed of the arms that choose a rate."""
OFF_BY_ONE = 2
"""Batches of an update, and steps that GRPO's engine is behind, at a lag of 1: the paper's baseline."""


@dataclass(frozen=True)
class Size:
    """How large an arm is."""

    steps: int
    groups: int
    """Of a step, each of 8 answers."""
    evaluate_every: int
    measured: int
    """Held-out problems of an evaluation on the way: of each family and tier as many."""


SIZES = {"cores": Size(400, 8, 100, 120), "gpu": Size(400, 8, 100, 300)}


def arms(scale: str, seed: int, rates: Mapping[str, float]) -> dict[str, Arm]:
    """The fifteen arms of a base, shortest lags last: they take longest."""
    return {
        f"{method}-lag{lag}-seed{seed}": _arm(scale, method, lag, rates[method], seed)
        for lag in reversed(LAGS)
        for method in METHODS
    }


def urgency(arm: Arm) -> int:
    """Place among arms that wait for a GPU whose time may end: first what the question on lag needs, longest first."""
    if arm.interval <= OFF_BY_ONE:
        return 0 if arm.objective in (METHODS["oapl"], METHODS["grpo"]) else 3
    return 1 if arm.interval == max(LAGS) else 2


def tuning(scale: str) -> dict[str, Arm]:
    """Every method at every rate, measured on validation problems."""
    return {
        f"{method}-rate{rate:g}-seed{TUNING_SEED}": _arm(
            scale, method, TUNED_AT, rate, TUNING_SEED, steps=TUNING_STEPS, measured_on="validation", answers_last=8
        )
        for method in METHODS
        for rate in RATES
    }


def _arm(scale: str, method: str, lag: int, rate: float, seed: int, **more: object) -> Arm:
    size = SIZES[scale]
    settings: dict[str, object] = {"steps": size.steps, "evaluate_every": size.evaluate_every}
    settings |= {"measured_problems": size.measured, "training": {"learning_rate": rate}, **more}
    is_off_by_one = method == "grpo" and lag == 1
    interval, offset = (OFF_BY_ONE, OFF_BY_ONE) if is_off_by_one else (lag, 0)
    return Arm(METHODS[method], interval, offset=offset, groups_per_step=size.groups, seed=seed, **settings)  # type: ignore[arg-type]


def chosen(right: Mapping[str, float]) -> dict[str, float]:
    """Each method's rate with the most correct validation answers, given them by arm; of equal ones the lower.

    Raises:
        KeyError: an arm of the tuning is missing.
    """
    return {
        method: max(RATES, key=lambda rate: (right[f"{method}-rate{rate:g}-seed{TUNING_SEED}"], -rate))
        for method in METHODS
    }
