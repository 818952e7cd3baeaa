"""Base models of several beds and seeds, many at once on a machine with a GPU that holds no run folders.

``python -m bench.claims.pretrained plan --to DIR --seeds 0 1 2`` opens the run folders of `bases.py` and `beds.py` in
DIR and writes DIR/jobs: what each missing model is made of, with its solutions. Carry that folder to the GPU.
``... make DIR/jobs --at-once 12`` makes them there as DIR/jobs/models; what is there is left alone. Bring that folder
back as DIR/cache/models, where the run folders find them: a name is the hash of what decides the model.

Many small models share a GPU only with its MPS daemon (docs/benchmarks/gpu.md).
"""

import argparse
import gzip
import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.claims import bases, beds
from bench.claims.at_once import run_at_once

if TYPE_CHECKING:
    from oapl_core.run_folder.run import Run

BEDS = ("demo", *beds.SETS)


def main() -> None:
    """Plan, make all, or make one."""
    parser = argparse.ArgumentParser(description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    planning = verbs.add_parser("plan")
    planning.add_argument("--to", type=Path, required=True)
    planning.add_argument("--beds", nargs="*", default=["demo", "countdown"], choices=BEDS)
    planning.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2, 3, 4, 5])
    making = verbs.add_parser("make")
    making.add_argument("jobs", type=Path)
    making.add_argument("--at-once", type=int, default=1)
    making.add_argument("--only", help="this model alone, in this process")
    options = parser.parse_args()
    if options.verb == "plan":
        plan(options.to.resolve(), options.beds, options.seeds)
    elif options.only:
        make(options.jobs, options.only)
    else:
        make_all(options.jobs, options.at_once)


def plan(to: Path, names: list[str], seeds: list[int]) -> None:
    """Write what each missing model is made of."""
    from oapl_core.run_folder.opening import opened

    jobs = to / "jobs"
    jobs.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {}
    for bed in names:
        if bed == "demo":
            bases.write_heldout(to)
        else:
            beds.write_sets(bed, to)
        for one in [one for seed in seeds for one in runs(bed, to, seed)]:
            with opened(one, print) as run:
                key, job = job_of(run)
                if (run.config.cache_dir / "models" / key).is_dir():
                    continue
                found[key] = {"bed": bed, **job}
                packed = jobs / f"{bed}.jsonl.gz"
                if not packed.exists():
                    assert run.config.pretrain
                    packed.write_bytes(gzip.compress(run.config.pretrain.solutions.read_bytes(), mtime=0))
    (jobs / "jobs.json").write_text(json.dumps(found, indent=1) + "\n")
    print(f"{len(found)} models to make: {jobs}")


def runs(bed: str, to: Path, seed: int) -> "Iterable[Run]":
    """Runs of a base, not yet opened; of the demo one."""
    return [bases.found(to, seed)] if bed == "demo" else beds.found(bed, to, seed)


def job_of(run: "Run") -> tuple[str, dict[str, Any]]:
    """Name of a run's base model in the cache, and what it is made with but for the solutions."""
    from oapl_core.pretraining.pretrain import RECIPE, content_key

    config = run.config.pretrain
    assert config
    settings = {**config.model_dump(mode="json"), "seed": run.config.seed, "recipe": RECIPE}
    made_with = {name: value for name, value in settings.items() if name not in ("solutions", "recipe", "seed")}
    return content_key(settings, run.inputs([config.solutions])), {"seed": run.config.seed, "pretrain": made_with}


def make(jobs: Path, name: str) -> None:
    """Make one model, on the GPU where there is one."""
    import torch

    from oapl_core.pretraining.pretrain import build, read_solved
    from oapl_core.settings.pretrain import PretrainConfig

    job = json.loads((jobs / "jobs.json").read_text())[name]
    solutions = jobs / f"{name}.jsonl"
    with gzip.open(jobs / f"{job['bed']}.jsonl.gz") as packed, solutions.open("wb") as whole:
        shutil.copyfileobj(packed, whole)
    config = PretrainConfig(solutions=solutions, **job["pretrain"])
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        build(read_solved(solutions), config, job["seed"], jobs / "models" / name)
    solutions.unlink()


def make_all(jobs: Path, at_once: int) -> None:
    """Make what is missing, each in a process of its own; one that fails is said at the end.

    Raises:
        SystemExit: a model could not be made.
    """
    names = [name for name in json.loads((jobs / "jobs.json").read_text()) if not (jobs / "models" / name).is_dir()]
    making = ["-m", "bench.claims.pretrained", "make", str(jobs), "--only"]
    run_at_once({name: [*making, name] for name in names}, jobs / "logs", at_once, "base models")


if __name__ == "__main__":
    main()
