"""The shipped experiments, rehearsed end to end: their headers' imports with curation, then `oapl run --limit`, on real
vLLM, sandbox and DeepSpeed with the demo's model; what `oapl plan` predicted is what happened."""

import json
import os
import subprocess
from collections import Counter
from pathlib import Path

import polars as pl
import pytest

from oapl_core.planning.plan import finished, steps
from oapl_core.run_folder.run import Run
from oapl_core.settings.experiment_file import load_experiment
from oapl_core.settings.rehearsal import rehearsal
from oapl_core.tables import count_rows
from oapl_extras.plan.estimate import Estimate, estimate
from oapl_extras.plan.plan_command import model_size, problem_counts
from tests.rehearsal_sources import (
    EACH_CONTEST,
    GOOD,
    LATER,
    WITHIN,
    imports,
    write_deepcoder_sources,
    write_math_sources,
)
from tests.whole_run import ROOT, command

LIMIT = 8
KEPT = {
    "deepcoder": {
        "livecodebench": WITHIN,
        "livecodebench-later": LATER,
        "deepcoder-lcbv5": GOOD,
        "deepcoder-taco": GOOD,
        "deepcoder-primeintellect": GOOD,
    },
    "math": dict.fromkeys(("aime25", "hmmt-feb25", "hmmt-nov25", "brumo25"), EACH_CONTEST) | {"deepscaler": GOOD},
}
LEFT_OUT = {
    "deepcoder": {
        "fewer than 5 tests": 1,
        "in an evaluation set": 1,
        "no reference solution passes every test": 1,
        "the same statement was there before": 1,
        "outside of the window": 2 + WITHIN,
    },
    "math": {"no answer": 1, "the same statement was there before": 1, "in an evaluation set": 1},
}


def oapl(arguments: list[str], folder: Path) -> str:
    """Run `oapl` in ``folder``, as from a checkout of its own; it must succeed."""
    done = subprocess.run(
        command(arguments),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def import_everything(experiment: Path, folder: Path) -> tuple[dict[str, int], Counter[str]]:
    """Run them; problems by file, and reasons why others were left out."""
    dropped: Counter[str] = Counter()
    kept = {}
    for arguments in imports(experiment):
        oapl(arguments, folder)
        target = folder / arguments[arguments.index("--to") + 1]
        origin = json.loads(target.with_name(f"{target.name}.origin.json").read_text())
        kept[target.stem] = count_rows(target)
        dropped.update(origin["dropped"])
    return kept, dropped


def predicted(experiment: Path) -> Estimate:
    small = rehearsal(load_experiment(experiment), LIMIT)
    return estimate(small, model_size(small)[0], problem_counts(small))


def check_counts(run: Run, plan: Estimate) -> None:
    """What was made is what was predicted, exactly: every group is kept and no prompt is too long."""
    for number, one in enumerate(plan.rounds):
        rollouts = pl.read_parquet(run.rollouts(number) / "*.parquet")
        assert (rollouts["problem_id"].n_unique(), len(rollouts)) == (one.problems, one.rollouts)
        assert sum(map(len, rollouts["response_ids"])) <= one.rollouts * run.config.sampling.max_tokens
        assert count_rows(run.groups(number)) == one.sequences
        lines = [
            line
            for epoch in range(1, one.checkpoints + 1)
            for line in (run.checkpoint(number, epoch) / "training_metrics.jsonl").read_text().splitlines()
        ]
        assert len(lines) == one.steps
        assert len(list(run.checkpoints(number).glob("epoch_*/model.safetensors"))) == one.checkpoints
    answers = pl.read_parquet(run.evaluation())
    assert len(answers) == plan.evaluation.answers
    assert answers.filter(pl.col("split") == "heldout")["policy_hash"].n_unique() <= plan.evaluation.checkpoints


@pytest.mark.slow
@pytest.mark.parametrize("name", ["deepcoder", "math"])
def test_an_experiment_rehearses_as_its_header_says_and_as_planned(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = ROOT / "deployments" / "experiments" / f"{name}.toml"
    write = write_deepcoder_sources if name == "deepcoder" else write_math_sources
    write(tmp_path / "data" / "sources")
    assert import_everything(experiment, tmp_path) == (KEPT[name], LEFT_OUT[name])
    monkeypatch.chdir(tmp_path)
    plan = predicted(experiment)
    said = oapl(["run", str(experiment), "--limit", str(LIMIT)], tmp_path)
    assert f"a rehearsal called {name}-limit{LIMIT}" in said
    assert "is not there, the demo's tiny model takes its place" in said
    run = Run.open(tmp_path / "data" / "runs" / f"{name}-limit{LIMIT}-seed0")
    assert len(finished(run)) == len(steps(run.config))
    problems = pl.read_parquet(run.problems).group_by("split", "source").len()
    sources = {(split, source): count for split, source, count in problems.iter_rows()}
    train = (
        ("deepcoder-lcbv5", "deepcoder-taco", "deepcoder-primeintellect") if name == "deepcoder" else ("deepscaler",)
    )
    assert {source for split, source in sources if split == "train"} == set(train)
    assert all(count == min(LIMIT, LATER if split == "validation" else LIMIT) for (split, _), count in sources.items())
    check_counts(run, plan)
    if name == "math":
        rounds = [set(pl.read_parquet(run.rollouts(n) / "*.parquet")["problem_id"]) for n in range(2)]
        assert not rounds[0] & rounds[1], "the walk goes on"
        assert {source for split, source in sources if split == "heldout"} == KEPT["math"].keys() - {"deepscaler"}
        assert "Held-out pass@1 by problem set" in (run.report / "report.md").read_text()
