"""deployments/experiments/gym.toml, scaled down: three tasks of reasoning-gym from `oapl gym` to the report."""

import json
import re
from pathlib import Path

import polars as pl
import pytest

from oapl_core.run_folder.run import Run
from tests.whole_run import ROOT, oapl

EXPERIMENT = ROOT / "deployments" / "experiments" / "gym.toml"
SIZES = {"-heldout": 8, "-validation": 4, "": 48}
pytestmark = pytest.mark.slow  # minutes


def made(folder: Path) -> dict[str, list[str]]:
    """The problem sets by split, made by the commands of the header with fewer problems."""
    header = EXPERIMENT.read_text().partition("\nname = ")[0]
    sets: dict[str, list[str]] = {"heldout": [], "validation": [], "train": []}
    for words in re.findall(r"^#   make (\w+ .*)$", header, re.MULTILINE):
        task, *settings = words.split()
        earlier: list[str] = []
        for (ending, size), split in zip(SIZES.items(), sets, strict=True):
            path = str(folder / f"{task}{ending}.jsonl")
            kept = ["--solutions", str(folder / f"{task}-solutions.jsonl")] if split == "train" else []
            sizes = [f"size={size}", f"split={split}", "--to", path]
            oapl(["gym", task, *settings, *sizes, *(f"--against={one}" for one in earlier), *kept])
            sets[split].append(path)
            earlier.append(path)
    solutions = "".join(path.read_text() for path in sorted(folder.glob("*-solutions.jsonl")))
    (folder / "solutions.jsonl").write_text(solutions)
    return sets


def test_three_tasks_go_from_problems_to_the_report(tmp_path: Path) -> None:
    pytest.importorskip(
        "reasoning_gym", reason="needs reasoning-gym: .venv/bin/uv pip install -r requirements/gym.lock"
    )
    changes = [f"problems.{split}={json.dumps(files)}" for split, files in made(tmp_path).items()]
    folders = [f"{name}={tmp_path}/{name}" for name in ("runs_dir", "cache_dir")]
    small = ["pretrain.epochs=10", "rounds.0.problems=24", "sampling.group_size=4", "training.batch_size=16"]
    few = ["evaluation.heldout_samples=2", "evaluation.validation_samples=1", "pretrain.batch_size=16"]
    oapl(["run", str(EXPERIMENT), *folders, *changes, f"pretrain.solutions={tmp_path}/solutions.jsonl", *small, *few])
    run = Run.open(tmp_path / "runs_dir" / "gym-seed0")
    answers = pl.read_parquet(run.evaluation()).filter(split="heldout")
    scored = answers.join(pl.read_parquet(run.problems).select("problem_id", "source", "info"), on="problem_id")
    assert set(scored["source"]) == {"chain_sum", "spell_backward", "letter_counting"}
    assert scored["reward"].null_count() == 0 and scored["reward"].is_between(0, 1).all()
    assert ((scored["reward"] > 0) & (scored["reward"] < 1)).any(), "scores are graded"
    assert all(json.loads(text)["task"] == source for text, source in scored.select("info", "source").iter_rows())
    assert "mean reward" in (run.root / "report" / "report.md").read_text()
