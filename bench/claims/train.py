"""Train the arms of a study: ``python -m bench.claims.train RUN... --study NAME --to DIR``.

For each run folder, which needs its base model and prompts (``bases.py`` makes the demo's), trains every arm of the
study (``studies.py``) by Algorithm 1 (``algorithm_1.py``) and writes DIR/RUN/ARM.json: what the arm is, each step's
metrics, each evaluation with the right answers of every problem, CPU seconds; of one that diverged all before that. An
arm that is there is left alone, so that the command may be killed at any point and called again. ``--minutes`` begins
no further arm after that time, ``--models`` keeps the trained weights as DIR/RUN/models/ARM. ``collect.py`` gathers
results, ``page.py`` shows them.
"""

import argparse
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oapl_core.errors import Diverged, StageFailed
from oapl_core.progress import say

if TYPE_CHECKING:
    from bench.claims.algorithm_1 import Arm
    from bench.claims.machine import Machine


def main() -> None:
    """Train what is missing."""
    from bench.claims import bed_studies
    from bench.claims.studies import STUDIES, arms

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--study", choices=[*STUDIES, *bed_studies.STUDIES], nargs="+", required=True)
    parser.add_argument("--to", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--only", default="", help="arms whose whole name, without its seed, matches")
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--models", action="store_true", help="keep the trained weights")
    options = parser.parse_args()
    wanted = {
        name: arm
        for study in options.study
        for name, arm in arms(study, options.seeds).items()
        if re.fullmatch(rf"(?:{options.only or '.*'})(-seed\d+)?", name)
    }
    end = time.monotonic() + 60 * options.minutes
    tell([name for run in options.runs for name in train(run, options.to, wanted, end, options.models)])


def tell(failed: Sequence[str]) -> None:
    """End the command, with a line, if arms failed."""
    if failed:
        sys.exit(f"{len(failed)} arms failed, and the next call tries them again: {', '.join(failed)}")


def train(
    run_dir: Path, to: Path, arms: "Mapping[str, Arm]", end: float = float("inf"), keep_models: bool = False
) -> list[str]:
    """The missing ones of ``arms``, one after the other, in one engine; none begins after ``end`` (monotonic).

    Returns the names of those that failed.
    """
    to = to / run_dir.name
    missing = {name: arm for name, arm in arms.items() if not (to / f"{name}.json").exists()}
    failed: list[str] = []
    if not missing or time.monotonic() > end:
        return failed
    import torch

    from bench.claims.machine import machine_of
    from oapl_core.rollouts.engine import SamplingEngine
    from oapl_core.run_folder.run import Run
    from oapl_core.verdicts.verifier import Verifier

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", len(os.sched_getaffinity(0)))))
    to.mkdir(parents=True, exist_ok=True)
    run = Run.open(run_dir)
    # small models, of which several share a GPU; a CPU has neither setting
    engine = run.config.engine.model_copy(update={"enforce_eager": True, "gpu_memory_utilization": 0.05})
    with (
        SamplingEngine(run.base_model(), engine) as sampler,
        Verifier(run.config.verifier) as verifier,
        tempfile.TemporaryDirectory() as scratch,
    ):
        machine = machine_of(run_dir, sampler, verifier, to / "kept")
        for number, (name, arm) in enumerate(missing.items(), 1):
            if time.monotonic() > end:
                break
            at = f"{run_dir.name}: arm {number}/{len(missing)} {name}"
            try:
                found = result(arm, machine, Path(scratch), at, to / "models" / name if keep_models else None)
            except StageFailed as error:
                say(f"{at}: {error}")
                failed.append(name)
                continue
            draft = to / f".tmp-{name}"
            draft.write_text(json.dumps({"base": run_dir.name, **found}))
            draft.rename(to / f"{name}.json")
    return failed


def result(arm: "Arm", machine: "Machine", scratch: Path, at: str, model: Path | None) -> dict[str, Any]:
    """Train an arm; what it is and came to, of one that diverged all before that. ``model`` gets its last weights.

    Raises:
        StageFailed: it ended for another reason, and may not the next time.
    """
    import torch

    start, lagged, failure = time.monotonic(), arm.start(machine, scratch), None
    try:
        lagged.run(lambda line: say(f"{at}: {line}"))
    except Diverged as error:
        failure = str(error)
    if model and failure is None:
        lagged.keep(model)
    return {
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "arm": arm.settings(),
        "failure": failure,
        "wall_s": round(time.monotonic() - start, 1),
        "evaluations": lagged.evaluations,
        "steps": lagged.metrics,
    }


if __name__ == "__main__":
    main()
