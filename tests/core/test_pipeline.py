"""Pipelined rounds: sampled one round behind, by a policy that is known, and by no other."""

import json
from pathlib import Path
from typing import Any

import pytest

from oapl_core.changing.cleaning import CleaningRules, candidates
from oapl_core.errors import ConfigError, DataError
from oapl_core.model_files.model_folder import policy_hash
from oapl_core.planning.plan import round_steps, times
from oapl_core.planning.preflight import before_stage
from oapl_core.rollouts.generate import generate
from oapl_core.run_folder.ledger import StageEntry
from oapl_core.run_folder.run import Run
from oapl_core.settings.experiment_file import parse_experiment
from oapl_core.tables import ROLLOUTS, read_table
from oapl_core.training.job import make_job
from tests.sampling_run import MadeUpSampler, made_up_model, make_run, train


def pipelined(folder: Path, **changes: Any) -> Run:
    """Three rounds, one after the other ahead of training."""
    changes = {"rounds": [{}, {}, {}], "pipeline": {}} | changes
    return make_run(folder / "runs", made_up_model(folder / "model"), **changes)


def sampled_by(run: Run, number: int) -> set[str]:
    parts = run.rollouts(number).glob("part-*.parquet")
    return {h for part in parts for h in read_table(part, ROLLOUTS, ["policy_hash"])["policy_hash"].to_pylist()}


def test_a_round_is_sampled_by_the_checkpoint_that_was_finished_when_the_round_before_trained(tmp_path: Path) -> None:
    run = pipelined(tmp_path)
    generate(run, 0, MadeUpSampler)
    generate(run, 1, MadeUpSampler)  # beside the training of round 0: no checkpoint is there
    train(run, (0,))
    generate(run, 2, MadeUpSampler)  # beside the training of round 1
    base, first = policy_hash(run.base_model()), policy_hash(run.checkpoint(0, 1))
    assert [sampled_by(run, number) for number in range(3)] == [{base}, {base}, {first}]
    train(run, (1,))
    sampler = MadeUpSampler(run.behavior(2), run.config.engine)
    generate(run, 2, lambda *_: sampler)
    assert sampler.answered == [], "a newer checkpoint makes nothing out of date"


def test_without_a_pipeline_every_round_has_the_newest(tmp_path: Path) -> None:
    run = pipelined(tmp_path, pipeline=None)
    assert [run.behavior(number) for number in range(3)] == [run.policy(number) for number in range(3)]


def test_training_knows_how_far_behind_its_rollouts_are(tmp_path: Path) -> None:
    run = pipelined(tmp_path)
    train(run)
    for number in range(3):
        with run.writing(run.groups(number), {}, {}) as draft:
            draft.path.write_text("")
    jobs = [make_job(run, number) for number in range(3)]
    assert [job.lag for job in jobs] == [0, 1, 1]
    assert jobs[2].behavior == run.checkpoint(0, 1)
    assert jobs[2].start == run.checkpoint(1, 1)


def test_weights_that_a_later_round_samples_with_stay(tmp_path: Path) -> None:
    run = pipelined(tmp_path)
    for path in (run.problems, run.prompts):
        assert run.ledger.artifacts()[run.name(path)]
    run.ledger.append(StageEntry("problems.prepare", 1.0, 0))
    train(run, (0, 1))
    for number in (0, 1):
        paths = [run.rollouts(number) / "part-00000.parquet", run.verdicts(number) / "part-00000.parquet"]
        for path in (*paths, run.groups(number)):
            with run.writing(path, {}, {}) as draft:
                draft.path.write_text("x")
        for step in round_steps(number):
            run.ledger.append(StageEntry(step.label, 1.0, 0))
    why = {one.name: one.needed_for for one in candidates(run, CleaningRules.parse(["checkpoints=0"]))}
    assert why["round_00/4_checkpoint/oapl/epoch_01"] == "round 2 samples with it"
    assert why["round_01/4_checkpoint/oapl/epoch_01"] == "round 2 starts from it"
    before_stage(run, "rollouts.generate", 2)


def test_lagged_rollouts_cannot_be_compared_with_the_start(tmp_path: Path) -> None:
    values = pipelined(tmp_path).config.model_dump(mode="json")
    values["training"]["reference"] = "reference"
    with pytest.raises(ConfigError, match="pipeline needs training.reference"):
        parse_experiment(values, "test")


def test_sampling_beside_training_adds_what_it_outlasts_it_by(tmp_path: Path) -> None:
    run = pipelined(tmp_path)
    run.ledger.append(StageEntry("training.train round 0", 10.0, 0))
    run.ledger.append(StageEntry("rollouts.generate round 1", 12.0, 0))
    assert [time.added_s for time in times(run)] == [10.0, 2.0]


def lagged(folder: Path, sampled_by_the_newest: bool) -> Run:
    """A run before the training of round 1: base model, round 0's checkpoint, and groups that one of them sampled."""
    from oapl_core import tables
    from tests.core.training.made_round import made_groups
    from tests.core.training.made_round import make_run as make_training_run
    from tests.tiny_model import write_tiny_model

    base = write_tiny_model(folder / "base")
    values = make_training_run(folder, base).config.model_dump(mode="json")
    run = Run.create(parse_experiment(values | {"name": "lagged", "rounds": [{}, {}], "pipeline": {}}, "test"))
    with run.writing(run.checkpoint(0, 1), {}, {}) as draft:
        write_tiny_model(draft.path, seed=1)
        draft.details = {"steps": 3}
    sampler = run.checkpoint(0, 1) if sampled_by_the_newest else base
    with run.writing(run.groups(1), {}, {}) as draft:
        draft.rows = tables.write_table(
            draft.path, tables.GROUPS, [{"correct": True, **row} for row in made_groups(sampler, groups=2)]
        )
    return run


def test_a_round_that_another_policy_sampled_is_refused(tmp_path: Path) -> None:
    """The real trainer's own check, on groups of the policy that training starts from instead of the one before."""
    from oapl_core.training.train import train as train_round

    run = lagged(tmp_path, sampled_by_the_newest=True)
    with pytest.raises(DataError, match=r"was sampled by policy .*, but the round's policy is"):
        train_round(run, 1)


@pytest.mark.slow
def test_a_lagged_round_trains_from_the_newest_on_rollouts_of_the_one_before(tmp_path: Path) -> None:
    import subprocess
    import sys

    run = lagged(tmp_path, sampled_by_the_newest=False)
    command = [sys.executable, "-m", "oapl_core.training.train", str(run.root), "--round", "1"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "engine and trainer are not compared" in done.stdout
    entry = run.ledger.artifacts()[run.name(run.checkpoint(1, 1))]
    assert entry.details["lag"] == 1
    steps = (run.checkpoint(1, 1) / "training_metrics.jsonl").read_text().splitlines()
    assert json.loads(steps[0])["policy_lag"] in (3, 4), "and the steps of the round between are counted"
    assert json.loads(steps[0])["token_log_ratio_abs"] > 1e-3, "the first step starts away from what sampled"
