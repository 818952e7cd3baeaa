"""Claims a to d: OAPL against GRPO with token importance sampling at several policy lags, on the demo's problems.

``python -m bench.claims.lag RUN --to DIR`` trains every arm by Algorithm 1 (``algorithm_1.py``) from RUN's base
model: objective x lag x seed, and OAPL in two offline rounds of several sizes with four epochs each. Writes
DIR/<arm>.json, each step's metrics and each evaluation, and the model as DIR/models/<arm>. ``--sweep`` trains the arms
that chose the learning rates instead, of another seed, measured on the validation problems. An arm that is there is
left alone, so that it may be killed at any point; ``--worker 0/2`` and ``--worker 1/2`` share the arms over two cores:
each does its own first, then what the other has not finished. ``figures.py`` shows what is there.
"""

import argparse
import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from oapl_core.errors import StageFailed
from oapl_core.objectives import Method, Oapl
from oapl_core.objectives.grpo import GrpoFrozen
from oapl_core.progress import say

if TYPE_CHECKING:
    from bench.claims.algorithm_1 import Arm

OBJECTIVES: dict[str, Method] = {"oapl": Oapl(regression_temperature=0.1), "grpo_frozen": GrpoFrozen()}
LEARNING_RATES = {"oapl": 2.5e-4, "grpo_frozen": 2.5e-4}
LAGS = {1: 200, 50: 200, 100: 200, 400: 400}
"""L, optimiser steps between two synchronisations, and the steps of its arms."""
ROUND_STEPS, ROUND_EPOCHS = (8, 16, 32), 4
"""Offline rounds: steps of fresh rollouts (64 in each), passes over them."""
SWEPT_RATES, SWEEP_STEPS, SWEEP_SEED = (1.25e-4, 2.5e-4, 5e-4, 1e-3), 200, 1000


def main() -> None:
    """Train what is missing, the worker's share first."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--to", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--worker", default="0/1")
    parser.add_argument("--sweep", action="store_true")
    options = parser.parse_args()
    arms = sweep() if options.sweep else claimed(options.seeds)
    worker, workers = map(int, options.worker.split("/"))
    if workers > 1:
        os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[worker]})
    names = list(arms)
    mine = names[worker::workers]
    train(options.run, options.to, {name: arms[name] for name in [*mine, *(n for n in names if n not in mine)]})


def claimed(seeds: int) -> "dict[str, Arm]":
    """The arms of the claims, by name, all of a seed before the next; ``roundsN``: two offline rounds of N rollouts."""
    from bench.claims.algorithm_1 import Arm

    found = {}
    for seed in range(seeds):
        for name, objective in OBJECTIVES.items():
            rate = {"learning_rate": LEARNING_RATES[name]}
            for lag, steps in LAGS.items():
                found[f"{name}-lag{lag}-seed{seed}"] = Arm(objective, lag, steps=steps, seed=seed, training=rate)
            for fresh in ROUND_STEPS if name == "oapl" else ():
                whole = fresh * ROUND_EPOCHS
                found[f"{name}-rounds{64 * fresh}-seed{seed}"] = Arm(
                    objective, fresh, ROUND_EPOCHS, steps=2 * whole, seed=seed, evaluate_every=whole, training=rate
                )
    return found


def sweep() -> "dict[str, Arm]":
    """The arms by which the learning rates were chosen, on-policy."""
    from bench.claims.algorithm_1 import Arm

    return {
        f"{name}-lag1-rate{rate:g}": Arm(
            objective, 1, steps=SWEEP_STEPS, seed=SWEEP_SEED, measured_on="validation", training={"learning_rate": rate}
        )
        for name, objective in OBJECTIVES.items()
        for rate in SWEPT_RATES
    }


def train(run_dir: Path, to: Path, arms: "dict[str, Arm]") -> None:
    """The arms, one after the other, in one engine."""
    import torch

    from bench.claims.algorithm_1 import Lagged, machine_of
    from oapl_core.rollouts.engine import SamplingEngine
    from oapl_core.run_folder.run import Run
    from oapl_core.verdicts.verifier import Verifier

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    to.mkdir(parents=True, exist_ok=True)
    run = Run.open(run_dir)
    with (
        SamplingEngine(run.base_model(), run.config.engine) as sampler,
        Verifier(run.config.verifier) as verifier,
        tempfile.TemporaryDirectory() as scratch,
    ):
        machine = machine_of(run_dir, sampler, verifier)
        for number, (name, arm) in enumerate(arms.items()):
            if (to / f"{name}.json").exists():
                continue
            lagged, failure = Lagged(arm, machine, Path(scratch)), None
            at = f"arm {number + 1}/{len(arms)} {name}"
            try:
                lagged.run(lambda line, at=at: say(f"{at}: {line}"))  # type: ignore[misc]
            except StageFailed as error:
                failure = str(error)
            lagged.keep(to / "models" / name)
            found = {
                "failure": failure,
                "seconds": lagged.seconds,
                "evaluations": lagged.evaluations,
                "steps": lagged.metrics,
            }
            draft = to / f".tmp-{name}"
            draft.write_text(json.dumps(found))
            draft.rename(to / f"{name}.json")


if __name__ == "__main__":
    main()
