"""Claims a and b: policy lag and entropy, OAPL against GRPO with token importance sampling, on the demo's problems.

``python -m tests.bench.claims.lag RUN --to DIR`` trains every arm (objective x lag x seed) for 400 steps by Algorithm 1
(``algorithm_1.py``) from RUN's base model and writes DIR/<arm>.json: each step's metrics and each evaluation. An arm
that is there is left alone, so that it may be killed at any point; ``--worker 0/2`` and ``--worker 1/2`` share the arms
over two cores. ``--table`` prints what is there: mean and range over the seeds.
"""

import argparse
import json
import os
import statistics
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from oapl_core.errors import StageFailed
from oapl_core.objectives import Method, Oapl
from oapl_core.objectives.grpo import GrpoTokenIs
from oapl_core.progress import say

OBJECTIVES: dict[str, Method] = {"oapl": Oapl(regression_temperature=0.1), "grpo_token_is": GrpoTokenIs()}
LAGS = (1, 50, 100, 400)
STEPS = 400


def main() -> None:
    """Train, or print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--to", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--worker", default="0/1")
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    if options.table:
        table(options.to)
        return
    worker, workers = map(int, options.worker.split("/"))
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[worker]} if workers > 1 else os.sched_getaffinity(0))
    names = [name for name in _names(options.seeds) if not (options.to / f"{name}.json").exists()]
    train(options.run, options.to, names[worker::workers])


def _names(seeds: int) -> Iterator[str]:
    for seed in range(seeds):
        for lag in LAGS:
            for objective in OBJECTIVES:
                yield f"{objective}-lag{lag}-seed{seed}"


def train(run_dir: Path, to: Path, names: list[str]) -> None:
    """The arms, one after the other, in one engine."""
    import torch

    from oapl_core.artifacts import Run
    from oapl_core.rollouts.engine import Engine
    from oapl_core.verdicts.verifier import Verifier
    from tests.bench.claims.algorithm_1 import Arm, Lagged, machine_of

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    to.mkdir(parents=True, exist_ok=True)
    run = Run.open(run_dir)
    with (
        Engine(run.base_model(), run.config.engine) as sampler,
        Verifier(run.config.verifier) as verifier,
        tempfile.TemporaryDirectory() as scratch,
    ):
        machine = machine_of(run_dir, sampler, verifier)
        for number, name in enumerate(names):
            objective, lag, seed = name.rsplit("-", 2)
            interval = int(lag.removeprefix("lag"))
            arm = Arm(OBJECTIVES[objective], interval, steps=STEPS)
            arm = replace(arm, seed=int(seed.removeprefix("seed")), evaluate_every=100)
            lagged, failure = Lagged(arm, machine, Path(scratch)), None
            try:
                lagged.run(lambda line, name=name, number=number: say(f"arm {number + 1}/{len(names)} {name}: {line}"))  # type: ignore[misc]
            except StageFailed as error:
                failure = str(error)
            found = {"failure": failure, "seconds": lagged.seconds, "evaluations": lagged.evaluations,
                     "steps": lagged.metrics}  # fmt: skip
            draft = to / f".tmp-{name}"
            draft.write_text(json.dumps(found))
            draft.rename(to / f"{name}.json")


def table(folder: Path) -> None:
    """A row for each objective and lag: where it ended, where its best was, entropy, lag and gradient norms."""
    print("| objective | lag | seeds | pass@1 at the end | best | pass@16 at the end | entropy, base to end | failed |")
    print("|---|---|---|---|---|---|---|---|")
    for objective in OBJECTIVES:
        for lag in LAGS:
            arms = [json.loads(path.read_text()) for path in sorted(folder.glob(f"{objective}-lag{lag}-seed*.json"))]
            if not arms:
                continue
            ends = [arm["evaluations"][-1] for arm in arms]
            best = [max(e["pass_at_1"] for e in arm["evaluations"]) for arm in arms]
            begins = statistics.mean(arm["evaluations"][0]["token_entropy"] for arm in arms)
            entropy = f"{begins:.3f} to {_spread([e['token_entropy'] for e in ends], 1)}"
            print(
                f"| {objective} | {lag} | {len(arms)} | {_spread([e['pass_at_1'] for e in ends])} | {_spread(best)} | "
                f"{_spread([e['pass_at_16'] for e in ends])} | {entropy} | {sum(bool(a['failure']) for a in arms)} |"
            )


def _spread(values: list[float], scale: float = 100.0) -> str:
    digits = 1 if scale > 1 else 3
    low, high = min(values) * scale, max(values) * scale
    return f"{statistics.mean(values) * scale:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


if __name__ == "__main__":
    main()
