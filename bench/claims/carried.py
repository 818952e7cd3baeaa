"""What arms need on a machine without run folders: ``python -m bench.claims.carried RUN... --to DIR [--steps 400]``.

For each run folder of `bases.py` or `beds.py`, vLLM samples what its base model answers to the problems of so many
steps of `algorithm_1.py`, the sandbox judges it, and DIR/NAME.json.gz gets those rollouts beside the prompts that are
measured on; DIR/models has the base models. The seed of rollouts and order is the base's own. Answers that are known
(DIR/kept) are not asked for again. DIR/rollouts.json says of each base that is there how many answers are correct, and
how groups are mixed.
"""

import argparse
import gzip
import hashlib
import json
import shutil
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from oapl_core.progress import say

if TYPE_CHECKING:
    from oapl_core.rollouts.requests import Sampler
    from oapl_core.verdicts.verifier import Verifier

MEASURED = 300
"""Held-out problems that are carried, the first ones."""


def main() -> None:
    """Write what each base needs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--to", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=90)
    options = parser.parse_args()
    from oapl_core.rollouts.engine import SamplingEngine
    from oapl_core.run_folder.run import Run
    from oapl_core.verdicts.verifier import Verifier

    # the bases of a bed have one architecture and one verifier, so both are started once
    first = Run.open(options.runs[0])
    engine = first.config.engine.model_copy(update={"enforce_eager": True})
    with SamplingEngine(first.base_model(), engine) as sampler, Verifier(first.config.verifier) as verifier:
        for run in options.runs:
            carry(run, options.to, options.steps, sampler, verifier)
    files = sorted(options.to.glob("*.json.gz"))
    rows = [about(json.loads(gzip.decompress(path.read_bytes()))) for path in files]
    (options.to / "rollouts.json").write_text(json.dumps(rows, indent=1) + "\n")


def carry(run_dir: Path, to: Path, steps: int, sampler: "Sampler", verifier: "Verifier") -> None:
    """One base; of the bed that sampler and verifier were started for."""
    from bench.claims.algorithm_1 import Arm
    from bench.claims.machine import machine_of
    from bench.claims.many_arms import GROUPS_PER_STEP
    from oapl_core.objectives import Oapl
    from oapl_core.run_folder.run import Run

    run = Run.open(run_dir)
    seed = run.config.seed
    arm = Arm(Oapl(), steps, steps=steps, seed=seed, groups_per_step=GROUPS_PER_STEP)
    with TemporaryDirectory() as scratch:
        machine = machine_of(run_dir, sampler, verifier, to / "kept" / run_dir.name)
        rows = arm.start(machine, Path(scratch)).sampled(machine.base, steps)
    rollouts = [
        {
            "problem": row["problem_id"],
            "group": row["group"],
            "response_ids": row["response_ids"],
            "logprobs": row["behavior_logprobs"],
            "reward": row["reward"],
            "correct": bool(row["correct"]),
        }
        for row in rows
    ]
    model = to / "models" / run_dir.name
    if not model.exists():
        shutil.copytree(machine.base, model)
    prompts = {split: {name: list(ids) for name, ids in own.items()} for split, own in machine.prompts.items()}
    prompts["heldout"] = dict(list(prompts["heldout"].items())[:MEASURED])
    facts: dict[str, Any] = {
        "bed": run.config.name,
        "base": run_dir.name,
        "seed": seed,
        "model": f"models/{run_dir.name}",
        "max_tokens": machine.max_tokens,
        "end_ids": end_ids(model),
        "prompts": prompts,
        "rollouts": rollouts,
        "rollouts_sha256": hashlib.sha256(json.dumps(rollouts).encode()).hexdigest()[:16],
    }
    (to / f"{run_dir.name}.json.gz").write_bytes(gzip.compress(json.dumps(facts).encode(), mtime=0))
    share = sum(row["correct"] for row in rollouts) / len(rollouts)
    say(f"{run_dir.name}: {len(rollouts)} rollouts, {share:.3f} right")


def about(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Shares of a base's rollouts: correct ones, groups that are mixed and that have no correct one, and of the correct
    ones those in groups without a wrong one."""
    groups = defaultdict[int, list[bool]](list)
    for row in facts["rollouts"]:
        groups[row["group"]].append(row["correct"])
    many, correct = len(groups), sum(map(sum, groups.values()))
    shares = {
        "correct": correct / len(facts["rollouts"]),
        "mixed_groups": sum(any(own) and not all(own) for own in groups.values()) / many,
        "wrong_groups": sum(not any(own) for own in groups.values()) / many,
        "correct_in_groups_all_correct": sum(len(own) for own in groups.values() if all(own)) / correct,
    }
    known = {name: facts[name] for name in ("base", "rollouts_sha256")} | {"rollouts": len(facts["rollouts"])}
    return known | {name: round(share, 4) for name, share in shares.items()}


def end_ids(model: Path) -> list[int]:
    """Tokens that end an answer."""
    from oapl_core.model_files.model_folder import end_token_ids

    return sorted(end_token_ids(model))


if __name__ == "__main__":
    main()
