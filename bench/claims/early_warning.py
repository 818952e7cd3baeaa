"""Whether two figures of a step foretell a collapse: ``python -m bench.claims.early_warning RUN --to DIR``.

Trains arms by Algorithm 1 (``algorithm_1.py``) on rollouts that RUN's base model sampled once, for 90 steps three times
over, with an evaluation on held-out problems every 15 steps: the paper's baseline and objectives that hold, several
seeds each. Writes DIR/RUN/<arm>.json; an arm that is there is left alone, so that it may be killed at any point. With
``--report`` it prints for each arm when it fell, and when each warning came first. The criterion is written in
docs/benchmarks/baselines.md, and was before anything ran.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.claims.results import fell
from bench.claims.train import tell, train
from oapl_core.objectives import Method, Oapl
from oapl_core.objectives.clipped.cispo import Cispo
from oapl_core.objectives.clipped.grpo import GrpoTokenIs
from oapl_core.objectives.reinforce import Reinforce
from oapl_core.objectives.topr import Topr

if TYPE_CHECKING:
    from bench.claims.algorithm_1 import Arm

SAMPLED, PASSES, RATE, EVERY = 90, 3, 2.5e-4, 15
ARMS: Mapping[str, tuple[Method, int, int]] = {
    "grpo_token_is": (GrpoTokenIs(), SAMPLED * PASSES, 4),
    "oapl": (Oapl(regression_temperature=0.1), SAMPLED * PASSES, 3),
    "topr": (Topr(), SAMPLED * PASSES, 2),
    "reinforce": (Reinforce(), SAMPLED, 2),
    "cispo": (Cispo(), SAMPLED, 2),
}
"""Objective, optimiser steps and seeds."""
WINDOW = 10
"""Steps over which a figure is averaged."""
LEAST = {"log_ratio_right": 0.0, "effective_sample_size": 0.1}
"""A warning comes when the mean of WINDOW steps is below it."""


def arms() -> "dict[str, Arm]":
    """By name, all of a seed before the next."""
    from bench.claims.algorithm_1 import Arm

    return {
        f"{name}-seed{seed}": Arm(
            objective,
            SAMPLED,
            steps // SAMPLED,
            steps=steps,
            seed=seed,
            evaluate_every=EVERY,
            keep="all",
            answers=8,
            answers_last=8,
            training={"learning_rate": RATE},
        )
        for seed in range(max(seeds for _, _, seeds in ARMS.values()))
        for name, (objective, steps, seeds) in ARMS.items()
        if seed < seeds
    }


def fell_at(evaluations: Sequence[Mapping[str, float]]) -> int | None:
    """The step of the first evaluation that has fallen below the best before it (`results.FALL`)."""
    best = 0.0
    for row in evaluations:
        if fell(row["pass_at_1"], best):
            return int(row["step"])
        best = max(best, row["pass_at_1"])
    return None


def warned_at(steps: Sequence[Mapping[str, Any]], figure: str) -> int | None:
    """The first step at which the mean of the last WINDOW steps that know ``figure`` is too low."""
    known = [(step["step"], step[figure]) for step in steps if step[figure] is not None]
    for end in range(WINDOW, len(known) + 1):
        if sum(value for _, value in known[end - WINDOW : end]) / WINDOW < LEAST[figure]:
            return int(known[end - 1][0])
    return None


def main() -> None:
    """Train what is missing, or report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--to", type=Path, required=True)
    parser.add_argument("--only", default="", help="arms whose names begin so")
    parser.add_argument("--report", action="store_true")
    options = parser.parse_args()
    wanted = {name: arm for name, arm in arms().items() if name.startswith(options.only)}
    if not options.report:
        tell(train(options.run, options.to, wanted))
        return
    for name in wanted:
        if (path := options.to / options.run.name / f"{name}.json").exists():
            found = json.loads(path.read_text())
            evaluations = [{"step": row["step"], "pass_at_1": row["right_share"]} for row in found["evaluations"]]
            curve = [round(100 * row["pass_at_1"], 1) for row in evaluations]
            line = {"arm": name, "fell": fell_at(evaluations)}
            line |= {figure: warned_at(found["steps"], figure) for figure in LEAST}
            print(json.dumps(line | {"pass_at_1": curve}))


if __name__ == "__main__":
    main()
