"""Replay and drawing by difficulty against plain rounds on the demo: ``python -m bench.rounds --to DIR``.

Three seeds by four arms: half an hour on two free cores; what is finished is not run again. Each seed is a run of four
rounds, and a fork of it for each other arm at round 1, so the arms of a seed share base model and round 0. All sample
3 x 2,000 answers after it. ``--collect DIR`` writes docs/benchmarks/data/rounds.{parquet,json} from what is there, and
``--page`` the tables of docs/benchmarks/data.md from those. Criteria are on that page.
"""

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl

from bench.claims.bases import heldout_problems
from bench.claims.bootstrap import Cells, Estimate, difference, estimate
from bench.claims.page import written
from bench.claims.results import Results
from bench.claims.verdicts import table
from bench.gym import gym_table
from data.demo import generate
from oapl_core.run_folder.run import Run

ROOT = Path(__file__).resolve().parents[1]
PAGE, DATA = ROOT / "docs" / "benchmarks" / "data.md", ROOT / "docs" / "benchmarks" / "data"
ROUNDS = 3
ARMS = {
    "plain": "",
    "plain-2-epochs": ", epochs = 2",
    "replay": ", replay = {rounds = 2, share = 0.5}",
    "difficulty": ', draw = "difficulty"',
}
SAMPLES = 2


def main() -> None:
    """Run, collect, or make the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--to", type=Path)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--collect", type=Path)
    parser.add_argument("--page", action="store_true")
    options = parser.parse_args()
    if options.to:
        options.to.mkdir(parents=True, exist_ok=True)
        generate.write(options.to / "heldout.jsonl", heldout_problems())
        for seed in options.seeds:
            for arm in ARMS:
                run(options.to.resolve(), arm, seed)
    if options.collect:
        collect(options.collect)
    if options.page:
        PAGE.write_text(page(PAGE.read_text()))


def rounds(arm: str) -> str:
    """The setting ``rounds`` of an arm."""
    return f"rounds=[{{epochs = 1}}, {{repeat = {ROUNDS}, problems = 250{ARMS[arm]}}}]"


def run(to: Path, arm: str, seed: int) -> None:
    """One arm of one seed to its end."""
    at = to / "runs" / f"{arm}-seed{seed}"
    if arm == "plain" and not at.exists():
        settings = {
            "name": '"plain"',
            "seed": seed,
            "problems.heldout": f'"{to}/heldout.jsonl"',
            "runs_dir": f'"{to}/runs"',
            "cache_dir": f'"{to}/cache"',
            "evaluation.choose_on": '"last"',
            "evaluation.validation_samples": 1,
            "evaluation.heldout_samples": SAMPLES,
        }
        demo = ROOT / "deployments" / "experiments" / "demo.toml"
        return _oapl("run", demo, rounds(arm), *(f"{key}={value}" for key, value in settings.items()))
    if not at.exists():
        _oapl("fork", to / "runs" / f"plain-seed{seed}", arm, "--round", "1", rounds(arm))
    return _oapl("run", at)


def _oapl(*arguments: object) -> None:
    subprocess.run([sys.executable, "-m", "deployments.cli", *map(str, arguments)], cwd=ROOT, check=True)


def collect(to: Path) -> None:
    """Right answers of each problem by arm, seed and round, and what the rounds sampled and trained on."""
    evaluations: list[dict[str, Any]] = []
    told: list[dict[str, Any]] = []
    for root in sorted((to / "runs").iterdir()):
        arm, _, seed = root.name.rpartition("-seed")
        key = {"arm": arm, "base": f"demo-seed{seed}", "seed": 0}
        one = Run.open(root)
        (answers,) = (one.round_dir(ROUNDS) / "5_evaluation").glob("*.parquet")
        evaluations += [{**key, **row} for row in _evaluations(pl.read_parquet(answers))]
        told += [{**key, **_round(one, number)} for number in range(1, ROUNDS + 1)]
    frame = pl.DataFrame(evaluations).sort("arm", "base", "step").with_columns(pl.col("right").cast(pl.List(pl.UInt8)))
    frame.write_parquet(DATA / "rounds_evaluations.parquet", compression="zstd", compression_level=19)
    (DATA / "rounds.json").write_text(json.dumps(told, indent=0) + "\n")


def _evaluations(answers: pl.DataFrame) -> Iterator[dict[str, Any]]:
    heldout = answers.filter(pl.col("split") == "heldout")
    for (checkpoint,), own in heldout.group_by("checkpoint"):
        right = own.group_by("problem_id").agg(right=(pl.col("reward") == 1).sum(), n=pl.len()).sort("problem_id")
        # step: rounds trained; `round 4 epoch 1` is the checkpoint that is reported
        step = 0 if checkpoint == "base" else int(str(checkpoint).split()[1]) + 1
        yield {"step": step, "n": right["n"].max(), "right": right["right"].to_list()}


def _round(one: Run, number: int) -> dict[str, Any]:
    verdicts = pl.read_parquet(one.verdicts(number) / "*.parquet")
    right = verdicts.group_by("problem_id").agg(share=pl.col("reward").mean(), n=pl.len())
    metrics = one.checkpoints(number).glob("epoch_*/training_metrics.jsonl")
    return {
        "round": number,
        "rollouts": verdicts.height,
        "right": verdicts["reward"].mean(),
        "mixed": right.filter(pl.col("share").is_between(0, 1, closed="none")).height / right.height,
        "rows": pl.read_parquet(one.groups(number), columns=["reward"]).height,
        "steps": sum(len(file.read_text().splitlines()) for file in metrics),
    }


def page(text: str) -> str:
    """The page with its tables made again."""
    return written(text, {"rounds": _arms, "rounds-differences": _differences, "gym": gym_table})


def _cells(arm: str, step: int = ROUNDS + 1) -> Cells:
    return Results(DATA, "rounds").cells(arm, step)


def _arms() -> str:
    told = json.loads((DATA / "rounds.json").read_text())
    rows = []
    for arm in ARMS:
        own = [row for row in told if row["arm"] == arm]
        last = estimate(_cells(arm))
        curve = " ".join(f"{100 * estimate(_cells(arm, step)).mean:.1f}" for step in range(ROUNDS + 2))
        mixed = statistics.fmean(row["mixed"] for row in own)
        steps = sum(row["steps"] for row in own) / len({row["base"] for row in own})
        rows.append([f"`{arm}`", last.shown(), _bases(last), curve, f"{100 * mixed:.0f} %", f"{steps:.0f}"])
    head = [
        "arm",
        "pass@1, %",
        "each seed",
        "before, after round 0 to 3",
        "groups with both",
        "steps in rounds 1 to 3",
    ]
    return table(head, rows)


def _differences() -> str:
    pairs = [("difficulty", "plain"), ("replay", "plain"), ("replay", "plain-2-epochs"), ("plain-2-epochs", "plain")]
    rows = []
    for one, other in pairs:
        found = difference(_cells(one), _cells(other))
        better = "better" if found.low > 0 else "worse" if found.high < 0 else "not decided"
        rows.append([f"`{one}` - `{other}`", found.shown(sign="+"), _bases(found, "+"), better])
    return table(["", "points", "each seed", "by the criterion"], rows)


def _bases(found: Estimate, sign: str = "") -> str:
    return ", ".join(f"{100 * value:{sign}.1f}" for _, value in sorted(found.by_base.items()))


if __name__ == "__main__":
    main()
