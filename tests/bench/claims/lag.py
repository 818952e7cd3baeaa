"""Claims a, b and d: policy lag and entropy, OAPL against GRPO with token importance sampling, on the demo's problems.

``python -m tests.bench.claims.lag RUN --to DIR`` trains every arm (objective x lag x seed) for 400 steps by Algorithm 1
(``algorithm_1.py``) from RUN's base model and writes DIR/<arm>.json, each step's metrics and each evaluation, and the
model as DIR/models/<arm>. ``--sweep`` trains the arms that chose the learning rates instead: half as long, another
seed, measured on the validation problems. An arm that is there is left alone, so that it may be killed at any point;
``--worker 0/2`` and ``--worker 1/2`` share the arms over two cores. ``--table`` prints what is there.
"""

import argparse
import json
import os
import statistics
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from oapl_core.errors import StageFailed
from oapl_core.objectives import Method, Oapl
from oapl_core.objectives.grpo import GrpoTokenIs
from oapl_core.progress import say

if TYPE_CHECKING:
    from tests.bench.claims.algorithm_1 import Arm

OBJECTIVES: dict[str, Method] = {"oapl": Oapl(regression_temperature=0.1), "grpo_token_is": GrpoTokenIs()}
LEARNING_RATES = {"oapl": 5e-4, "grpo_token_is": 5e-4}
LAGS = (1, 50, 100, 400)
STEPS = 400
SWEPT_RATES, SWEPT_LAGS, SWEEP_STEPS, SWEEP_SEED = (1.25e-4, 2.5e-4, 5e-4, 1e-3), (1, 50), 200, 1000


def main() -> None:
    """Train, or print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--to", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--worker", default="0/1")
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    arms = sweep() if options.sweep else claimed(options.seeds)
    if options.table:
        table(options.to, list(arms))
        return
    worker, workers = map(int, options.worker.split("/"))
    if workers > 1:
        os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[worker]})
    waiting = [name for name in arms if not (options.to / f"{name}.json").exists()]
    train(options.run, options.to, {name: arms[name] for name in waiting[worker::workers]})


def claimed(seeds: int) -> "dict[str, Arm]":
    """The arms of the claims, by name, all of a seed before the next."""
    from tests.bench.claims.algorithm_1 import Arm

    return {
        f"{name}-lag{lag}-seed{seed}": Arm(
            objective, lag, steps=STEPS, seed=seed, training={"learning_rate": LEARNING_RATES[name]}
        )
        for seed in range(seeds)
        for lag in LAGS
        for name, objective in OBJECTIVES.items()
    }


def sweep() -> "dict[str, Arm]":
    """The arms by which the learning rates were chosen."""
    from tests.bench.claims.algorithm_1 import Arm

    return {
        f"{name}-lag{lag}-rate{rate:g}": Arm(
            objective, lag, steps=SWEEP_STEPS, seed=SWEEP_SEED, measured_on="validation",
            training={"learning_rate": rate},
        )
        for lag in SWEPT_LAGS
        for name, objective in OBJECTIVES.items()
        for rate in SWEPT_RATES
    }  # fmt: skip


def train(run_dir: Path, to: Path, arms: "dict[str, Arm]") -> None:
    """The arms, one after the other, in one engine."""
    import torch

    from oapl_core.artifacts import Run
    from oapl_core.rollouts.engine import Engine
    from oapl_core.verdicts.verifier import Verifier
    from tests.bench.claims.algorithm_1 import Lagged, machine_of

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    to.mkdir(parents=True, exist_ok=True)
    run = Run.open(run_dir)
    with (
        Engine(run.base_model(), run.config.engine) as sampler,
        Verifier(run.config.verifier) as verifier,
        tempfile.TemporaryDirectory() as scratch,
    ):
        machine = machine_of(run_dir, sampler, verifier)
        for number, (name, arm) in enumerate(arms.items()):
            lagged, failure = Lagged(arm, machine, Path(scratch)), None
            at = f"arm {number + 1}/{len(arms)} {name}"
            try:
                lagged.run(lambda line, at=at: say(f"{at}: {line}"))  # type: ignore[misc]
            except StageFailed as error:
                failure = str(error)
            lagged.keep(to / "models" / name)
            found = {"failure": failure, "seconds": lagged.seconds, "evaluations": lagged.evaluations,
                     "steps": lagged.metrics}  # fmt: skip
            draft = to / f".tmp-{name}"
            draft.write_text(json.dumps(found))
            draft.rename(to / f"{name}.json")


def table(folder: Path, names: list[str]) -> None:
    """A row for each objective and setting, over its seeds: where it ended, where its best was, entropy."""
    print("| arm | seeds | pass@1 at the end | best | pass@8 at the end | entropy, base to end | failed |")
    print("|---|---|---|---|---|---|---|")
    for setting in dict.fromkeys(name.partition("-seed")[0] for name in names):
        found = [folder / f"{name}.json" for name in names if name.partition("-seed")[0] == setting]
        arms = [json.loads(path.read_text()) for path in found if path.exists()]
        if not arms:
            continue
        ends = [arm["evaluations"][-1] for arm in arms]
        best = [max(e["pass_at_1"] for e in arm["evaluations"]) for arm in arms]
        begins = statistics.mean(arm["evaluations"][0]["token_entropy"] for arm in arms)
        entropy = f"{begins:.3f} to {_spread([e['token_entropy'] for e in ends], 1)}"
        print(
            f"| {setting} | {len(arms)} | {_spread([e['pass_at_1'] for e in ends])} | {_spread(best)} | "
            f"{_spread([e['pass_at_8'] for e in ends])} | {entropy} | {sum(bool(a['failure']) for a in arms)} |"
        )


def _spread(values: list[float], scale: float = 100.0) -> str:
    digits = 1 if scale > 1 else 3
    low, high = min(values) * scale, max(values) * scale
    return f"{statistics.mean(values) * scale:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


if __name__ == "__main__":
    main()
