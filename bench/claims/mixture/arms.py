"""The arms on the mixture, in commands that a kill only delays. RUN is a run folder of `bed.py`.

    python -m bench.claims.mixture.arms plan SCALE --gates FILE --sampled 9000 --trained 20000
    python -m bench.claims.mixture.arms tune RUN... --to DIR --minutes 8
    python -m bench.claims.mixture.arms train RUN... --to DIR --minutes 8
    python -m bench.claims.mixture.arms measure RUN... --to DIR --minutes 8

``plan`` prints what each arm costs, at so many sampled and trained tokens a second. ``tune`` trains the arms that
choose rates, and writes DIR/RUN/rates.json when all are there. ``train`` trains the fifteen of each base, and saves
after every ten steps. ``measure`` asks base and arms for 256 answers to each of some held-out problems. All three
refuse a base whose gates (DIR/gates-SCALE-HASH.json) are not met; ``--trial`` lets any pass, to try the commands.
Results are DIR/RUN/ARM.json and DIR/RUN/ARM.measured.json, small files to carry home.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.claims.mixture import studies
from bench.claims.mixture.scales import SCALES

if TYPE_CHECKING:
    from bench.claims.algorithm_1 import Arm
    from bench.claims.machine import Machine

ANSWERS, PROBLEMS = 256, 12
"""Of the last measurement: answers to each problem, and problems of each family and tier."""


def main() -> None:
    """Plan, tune, train or measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    planning = verbs.add_parser("plan")
    planning.add_argument("scale", choices=list(SCALES))
    planning.add_argument("--gates", type=Path, required=True, help="a result of `gates`, for the lengths")
    planning.add_argument("--sampled", type=float, required=True, help="tokens a second")
    planning.add_argument("--trained", type=float, required=True, help="tokens a second, prompts among them")
    planning.add_argument("--sync", type=float, default=1.0, help="seconds of a synchronisation")
    for verb in ("tune", "train", "measure"):
        one = verbs.add_parser(verb)
        one.add_argument("runs", type=Path, nargs="+")
        one.add_argument("--to", type=Path, required=True)
        one.add_argument("--minutes", type=float, default=float("inf"))
        one.add_argument("--trial", action="store_true", help="also where gates are closed")
        one.add_argument("--steps", type=int, help="fewer, with --trial")
    options = parser.parse_args()
    if options.verb == "plan":
        print(costs(options.scale, json.loads(options.gates.read_text()), options))
        return
    until = time.monotonic() + 60 * options.minutes
    for run in options.runs:
        if not work(options.verb, run, options.to, until, options.trial, options.steps):
            sys.exit(f"{run.name}: time is up; call again to continue")


def work(verb: str, run_dir: Path, to: Path, until: float, is_trial: bool = False, steps: int | None = None) -> bool:
    """A verb's work on one base; returns whether all of it is done.

    Raises:
        SystemExit: the base's gates are not met, or no rates were chosen.
    """
    from bench.claims.machine import machine_of
    from oapl_core.rollouts.engine import SamplingEngine
    from oapl_core.run_folder.run import Run
    from oapl_core.verdicts.verifier import Verifier

    run = Run.open(run_dir)
    scale, base, own = run.config.name.removeprefix("mixture-"), run.base_model(), to / run_dir.name
    if not is_trial:
        require_open(to, scale, base)
    wanted = arms_of(verb, scale, run.config.seed, own, is_trial)
    if steps:
        wanted = {name: shorter(arm, steps) for name, arm in wanted.items()}
    own.mkdir(parents=True, exist_ok=True)
    engine = run.config.engine.model_copy(update={"enforce_eager": True})
    with SamplingEngine(base, engine) as sampler, Verifier(run.config.verifier) as verifier:
        machine = machine_of(run_dir, sampler, verifier, own / "kept")
        if verb == "measure":
            return measure(machine, run.problems, own, until)
        done = train(machine, wanted, own, until)
    if verb == "tune" and done:
        results = {name: json.loads((own / f"{name}.json").read_text()) for name in wanted}
        right = {name: one["evaluations"][-1]["right_share"] for name, one in results.items()}
        (own / "rates.json").write_text(json.dumps(studies.chosen(right), indent=1) + "\n")
    return done


def require_open(to: Path, scale: str, base: Path) -> None:
    """Refuse a base whose gates are closed or were not measured.

    Raises:
        SystemExit: one line.
    """
    from oapl_core.model_files.model_folder import policy_hash

    path = to / f"gates-{scale}-{policy_hash(base)}.json"
    if not path.exists():
        sys.exit(f"{path} is missing: measure the base with `python -m bench.claims.mixture.gates` first")
    if not json.loads(path.read_text())["is_open"]:
        sys.exit(f"{path}: not all gates are met; make another base, no arm is trained on this one")


def arms_of(verb: str, scale: str, seed: int, own: Path, is_trial: bool) -> dict[str, Arm]:
    """The arms of a verb.

    Raises:
        SystemExit: rates are not chosen yet.
    """
    if verb == "tune":
        return studies.tuning(scale)
    path = own / "rates.json"
    if path.exists():
        return studies.arms(scale, seed, json.loads(path.read_text()))
    if not is_trial:
        sys.exit(f"{path} is missing: choose rates with `tune` first")
    return studies.arms(scale, seed, dict.fromkeys(studies.METHODS, studies.RATES[1]))


def shorter(arm: Arm, steps: int) -> Arm:
    """An arm to try the commands with."""
    from dataclasses import replace

    return replace(arm, steps=steps, evaluate_every=steps, measured_problems=6)


def train(machine: Machine, arms: Mapping[str, Arm], own: Path, until: float, chunk: int | None = None) -> bool:
    """The missing arms, one after the other, in chunks of steps; returns whether all are there."""
    import torch

    from bench.claims.mixture.continued import Continued, Paused
    from oapl_core.errors import Diverged

    missing = {name: arm for name, arm in arms.items() if not (own / f"{name}.json").exists()}
    for number, (name, arm) in enumerate(missing.items(), 1):
        with tempfile.TemporaryDirectory() as scratch:
            kept = own / "states" / f"{name}.pt"
            one, failure = Continued(arm, machine, Path(scratch), kept, until, chunk), None
            try:
                one.run(partial(_say, f"{own.name}: {number}/{len(missing)} {name}"))
            except Paused:
                return False
            except Diverged as error:
                failure = str(error)
            else:
                one.keep(own / "models" / name)
        found = {
            "base": own.name,
            "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
            "arm": arm.settings(),
            "failure": failure,
            "problems": list(machine.prompts[arm.measured_on])[: arm.measured_problems],
            "seconds": round(one.seconds, 1),
            "evaluations": one.evaluations,
            "steps": one.metrics,
        }
        write(own / f"{name}.json", found)
        kept.unlink(missing_ok=True)
    return True


def _say(at: str, line: str) -> None:
    print(f"{at}: {line}", flush=True)


def measure(machine: Machine, problems: Path, own: Path, until: float) -> bool:
    """256 answers of every model that is there to some held-out problems; returns whether all were asked."""
    from bench.claims.mixture import measuring
    from oapl_core.model_files.model_folder import policy_hash
    from oapl_core.tables import PROBLEMS as COLUMNS
    from oapl_core.tables import read_table

    rows = [row for row in read_table(problems, COLUMNS).to_pylist() if row["split"] == "heldout"]
    asked = [row for tier in measuring.TIERS for row in measuring.chosen(_of_tier(rows, tier), PROBLEMS)]
    for folder in [machine.base, *sorted((own / "models").glob("*"))]:
        path = own / f"{'base' if folder == machine.base else folder.name}.measured.json"
        if path.exists():
            continue
        if time.monotonic() > until:
            return False
        found = measuring.widths(machine, folder, asked, ANSWERS)
        write(path, {"policy_hash": policy_hash(folder), "n": ANSWERS, "problems": found})
        print(f"{own.name}: {path.name}", flush=True)
    return True


def _of_tier(rows: list[dict[str, Any]], tier: str) -> list[dict[str, Any]]:
    from bench.claims.mixture.measuring import family_of

    return [row for row in rows if family_of(row)[1] == tier]


def write(path: Path, found: Mapping[str, Any]) -> None:
    """JSON, all or none."""
    draft = path.with_name(f".tmp-{path.name}")
    draft.write_text(json.dumps(found) + "\n")
    draft.rename(path)


def costs(scale: str, gates: Mapping[str, Any], speeds: Any) -> str:
    """Hours of the arms of one base as Markdown, computed from lengths that were measured and speeds that are given."""
    answer, prompt = gates["tokens"]["mixture usual"], gates["prompt_tokens"]
    lines = ["| arms | sampled, M tokens | trained, M tokens | hours |", "|---|---|---|---|"]
    total = 0.0
    groups = {"tuning": studies.tuning(scale)}
    every = studies.arms(scale, 0, dict.fromkeys(studies.METHODS, studies.RATES[0]))
    for lag in studies.LAGS:
        groups[f"L = {lag}"] = {name: arm for name, arm in every.items() if f"-lag{lag}-" in name}
    for name, arms in groups.items():
        sampled = trained = syncs = 0.0
        for arm in arms.values():
            sequences = arm.steps * arm.groups_per_step * arm.group_size
            measured = arm.measured_problems or 0
            asked = measured * (arm.steps // arm.evaluate_every * arm.answers + arm.answers_last)
            sampled += (sequences + asked) * answer / 1e6
            trained += sequences * (prompt + answer) / 1e6
            syncs += arm.steps / arm.interval
        hours = (sampled * 1e6 / speeds.sampled + trained * 1e6 / speeds.trained + syncs * speeds.sync) / 3600
        total += hours
        lines.append(f"| {len(arms)} of {name} | {sampled:.1f} | {trained:.1f} | {hours:.1f} |")
    lines.append(f"| all of a base | | | {total:.1f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
