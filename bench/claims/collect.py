"""Gather results into small files: ``python -m bench.claims.collect DIR --to docs/benchmarks/data [--bed demo]``.

Reads DIR/BASE/ARM-seedN.json (``train.py``). Writes, for the bed, BED_evaluations.parquet (a row for each evaluation:
right answers of each problem in ``right``, entropy, length, rollouts so far and their hash, CPU seconds so far, the
device that computed), BED_steps.parquet (means of ten steps of training metrics) and BED_arms.json (settings of each
arm). Rows are sorted; those of bases that DIR has not stay.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import polars as pl

from oapl_core.progress import say

WINDOW = 10
BASE = "demo-seed0"
"""Whose rollouts a comparison of this folder trains on."""
METRICS = ("entropy", "kl", "log_ratio", "log_ratio_right", "clipped_tokens_share", "grad_norm", "right_share")
_MEASURED = ("n", "right_share", "entropy", "entropy_ended", "tokens", "cut_share")
_SPENT = ("cpu_sampling_s", "cpu_training_s", "cpu_sync_s")


def main() -> None:
    """Read and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("--to", type=Path, required=True)
    parser.add_argument("--bed", default="demo")
    parser.add_argument("--comparison", action="store_true", help="DIR is a comparison's folder (`oapl compare`)")
    options = parser.parse_args()
    (collect_comparison if options.comparison else collect)(options.results, options.to, options.bed)


def collect(results: Path, to: Path, bed: str) -> None:
    """Every finished arm below ``results``."""
    paths = [path for path in sorted(results.glob("*/*-seed*.json")) if not path.stem.endswith(".measured")]
    found = [(path, json.loads(path.read_text())) for path in paths]
    keys = [dict(zip(("base", "arm", "seed"), key_of(path), strict=True)) for path, _ in found]
    evaluations = [{**key, **row} for key, (_, one) in zip(keys, found, strict=True) for row in _evaluations(one)]
    steps = [{**key, **row} for key, (_, one) in zip(keys, found, strict=True) for row in _windows(one["steps"])]
    to.mkdir(parents=True, exist_ok=True)
    arms = _kept_settings(to, bed, {str(row["base"]) for row in keys})
    for (path, one), key in zip(found, keys, strict=True):
        own = json.loads(json.dumps(_settings(one)))
        if arms.setdefault(str(key["arm"]), own) != own:
            sys.exit(f"{path}: has other settings than other results of {key['arm']}; give it another name")
        if one.get("failure"):
            say(f"{path}: {one['failure']}; it has no later evaluations, and means leave its base out")
    order = ["arm", "base", "seed", "step"]
    narrow = pl.col(pl.Float64).cast(pl.Float32)
    frame = pl.DataFrame(evaluations, infer_schema_length=None)
    # at most 255 answers a problem; the right share is in the counts
    frame = frame.with_columns(narrow, pl.col("right").cast(pl.List(pl.UInt8)))
    steps_frame = pl.DataFrame(steps, infer_schema_length=None).with_columns(narrow)
    for new, name in ((frame, "evaluations"), (steps_frame, "steps")):
        path = to / f"{bed}_{name}.parquet"
        both = pl.concat([new, _others(path, new)], how="diagonal_relaxed").sort(order)
        both.write_parquet(path, compression="zstd", compression_level=19)
    (to / f"{bed}_arms.json").write_text(json.dumps(dict(sorted(arms.items())), indent=1, sort_keys=True) + "\n")


def _kept_settings(to: Path, bed: str, new: Collection[str]) -> dict[str, Any]:
    """Settings of the arms that bases have which are not collected now."""
    path, evaluations = to / f"{bed}_arms.json", to / f"{bed}_evaluations.parquet"
    if not path.exists() or not evaluations.exists():
        return {}
    others = set(pl.read_parquet(evaluations).filter(~pl.col("base").is_in(new))["arm"])
    return {name: own for name, own in json.loads(path.read_text()).items() if name in others}


def _others(path: Path, new: pl.DataFrame) -> pl.DataFrame:
    """What ``path`` has of bases that are not collected now."""
    return pl.read_parquet(path).join(new, on="base", how="anti") if path.exists() else new.clear()


def collect_comparison(root: Path, to: Path, bed: str) -> None:
    """The measurements of a comparison's arms and of their base (step 0), right answers by problem."""
    rows = []
    for arm in sorted((root / "arms").iterdir()):
        name, _, seed = arm.name.rpartition("-seed")
        (file,) = (arm / "round_00" / "5_evaluation").glob("*.parquet")
        answers = pl.read_parquet(file).filter(pl.col("split") == "heldout")
        metrics = (arm / "round_00" / "4_checkpoint").glob("*/epoch_*/training_metrics.jsonl")
        steps = sum(len(one.read_text().splitlines()) for one in metrics)
        for (checkpoint,), own in answers.group_by("checkpoint"):
            by_problem = (
                own.group_by("problem_id").agg(right=(pl.col("reward") == 1).sum(), n=pl.len()).sort("problem_id")
            )
            cut, tokens = (own["finish_reason"] == "length").mean(), own["response_tokens"].mean()
            step = 0 if checkpoint == "base" else steps
            key = {"base": BASE, "arm": name, "seed": int(seed), "step": step, "split": "heldout"}
            facts = {"n": by_problem["n"].max(), "cut_share": cut, "tokens": tokens}
            rows.append({**key, **facts, "right": by_problem["right"].to_list()})
    frame = pl.DataFrame(rows).sort("arm", "base", "seed", "step")
    frame = frame.with_columns(pl.col(pl.Float64).cast(pl.Float32), pl.col("right").cast(pl.List(pl.UInt8)))
    frame.write_parquet(to / f"{bed}_evaluations.parquet", compression="zstd", compression_level=19)


def key_of(path: Path) -> tuple[str, str, int]:
    """Base, arm and seed of a result."""
    arm, _, seed = path.stem.rpartition("-seed")
    return path.parent.name, arm, int(seed)


def _settings(one: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in one["arm"].items() if name != "seed"}


def _evaluations(one: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for row in one["evaluations"]:
        kept = {name: row[name] for name in ("step", "rollouts", *_MEASURED, *_SPENT)}
        distinct = sum(row["distinct_right"]) / len(row["distinct_right"])
        facts = {"split": one["arm"]["measured_on"], "device": one.get("device", "cpu")}
        facts |= {"rollouts_sha256": row["rollouts_sha256"]} if "rollouts_sha256" in row else {}
        yield {**kept, **facts, "distinct_right": distinct, "right": row["right"]}


def _windows(steps: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for start in range(0, len(steps), WINDOW):
        rows = steps[start : start + WINDOW]
        means = {}
        for name in METRICS:
            known = [row[name] for row in rows if row.get(name) is not None]
            means[name] = statistics.fmean(known) if known else None
        last = {"step": rows[-1]["step"], "policy_lag": rows[-1]["policy_lag"]}
        yield {**last, **means, "token_log_ratio_max": max(row["token_log_ratio_max"] for row in rows)}


if __name__ == "__main__":
    main()
