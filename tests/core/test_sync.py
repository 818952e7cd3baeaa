"""Which checkpoint samples which round, and how many optimiser steps the policy is ahead of it at every step."""

from pathlib import Path
from typing import Any

import pytest

from oapl_core.changing.cleaning import CleaningRules, candidates, remove
from oapl_core.changing.forking import fork
from oapl_core.errors import ConfigError, DataError
from oapl_core.model_files.model_folder import policy_hash
from oapl_core.planning.plan import round_steps
from oapl_core.rollouts.generate import generate
from oapl_core.run_folder.ledger import StageEntry
from oapl_core.run_folder.run import Run
from oapl_core.settings.experiment_file import parse_experiment
from oapl_core.settings.sync import SyncConfig
from oapl_core.tables import ROLLOUTS, read_table
from oapl_core.training.job import make_job
from tests.sampling_run import STEPS, MadeUpSampler, made_up_model, make_run, train


def synchronised(folder: Path, rounds: int, every: int = 1, offset: int | None = None, **changes: Any) -> Run:
    sync = {"every_rounds": every, "offset_rounds": offset}
    changes = {"rounds": [{"problems": 2}] * rounds, "sync": sync} | changes
    return make_run(folder / "runs", made_up_model(folder / "model"), **changes)


def write_groups(run: Run, number: int) -> None:
    for path in (run.verdicts(number) / "part-00000.parquet", run.groups(number)):
        with run.writing(path, {}, {}) as draft:
            draft.path.write_text("")


@pytest.mark.parametrize(
    ("every", "offset", "expected"),
    [
        (1, 0, [0, 1, 2, 3, 4, 5]),
        (1, 1, [0, 0, 1, 2, 3, 4]),
        (1, 3, [0, 0, 0, 0, 1, 2]),
        (2, 0, [0, 0, 2, 2, 4, 4]),
        (3, 1, [0, 0, 0, 2, 2, 2]),
        (2, 9, [0, 0, 0, 0, 0, 0]),
    ],
)
def test_interval_and_offset_choose_the_round_whose_start_samples(every: int, offset: int, expected: list[int]) -> None:
    sync = SyncConfig(every_rounds=every, offset_rounds=offset)
    assert [sync.starting_round(number, pipelined=False) for number in range(6)] == expected


def test_an_unset_offset_is_none_or_the_pipelines_one() -> None:
    sync = SyncConfig()
    assert [sync.starting_round(number, pipelined=False) for number in range(3)] == [0, 1, 2]
    assert [sync.starting_round(number, pipelined=True) for number in range(3)] == [0, 0, 1]


@pytest.mark.parametrize(
    ("every", "offset", "expected"),
    [
        (1, 0, [0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2]),
        (1, 1, [0, 1, 2, 3, 4, 5, 3, 4, 5, 3, 4, 5]),
        (1, 2, [0, 1, 2, 3, 4, 5, 6, 7, 8, 6, 7, 8]),
        (2, 0, [0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5]),
        (2, 1, [0, 1, 2, 3, 4, 5, 3, 4, 5, 6, 7, 8]),
    ],
)
def test_every_step_knows_how_many_steps_ahead_it_is(
    tmp_path: Path, every: int, offset: int, expected: list[int]
) -> None:
    run = synchronised(tmp_path, 4, every, offset)
    lags = []
    for number in range(4):
        generate(run, number, MadeUpSampler)  # before training: the checkpoint must be there by now
        write_groups(run, number)
        job = make_job(run, number)
        parts = run.rollouts(number).glob("part-*.parquet")
        sampled = {h for p in parts for h in read_table(p, ROLLOUTS, ["policy_hash"])["policy_hash"].to_pylist()}
        assert sampled == {policy_hash(job.behavior)}, "one policy, and the one that training asks for"
        lags += [job.lag_steps + step for step in range(STEPS)]
        train(run, (number,))
    assert lags == expected


def test_steps_of_every_epoch_in_between_count(tmp_path: Path) -> None:
    rounds = [{"epochs": 2, "problems": 2}, {"epochs": 4, "problems": 2}, {"problems": 2}]
    run = make_run(tmp_path, made_up_model(tmp_path / "model"), rounds=rounds, sync={"offset_rounds": 2})
    train(run, (0, 1))
    write_groups(run, 2)
    assert make_job(run, 2).lag_steps == (2 + 4) * STEPS
    assert make_job(run, 2).lag == 2


def test_a_lag_that_the_ledger_cannot_tell_is_refused(tmp_path: Path) -> None:
    run = synchronised(tmp_path, 2, offset=1)
    with run.writing(run.checkpoint(0, 1), {}, {}) as draft:
        made_up_model(draft.path)
    write_groups(run, 1)
    with pytest.raises(DataError, match="does not say how many optimiser steps"):
        _ = make_job(run, 1).lag_steps


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"pipeline": {}, "sync": {"offset_rounds": 0}}, "contradict each other"),
        ({"sync": {"offset_rounds": 1}, "training": {"reference": "reference"}}, "sync needs training.reference"),
        ({"sync": {"every_rounds": 2}, "training": {"reference": "reference"}}, "sync needs training.reference"),
        ({"sync": {"offset_rounds": -1}}, "sync.offset_rounds"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    values = synchronised(tmp_path, 3).config.model_dump(mode="json")
    for key, value in changes.items():
        values[key] = {**(values[key] or {}), **value}
    with pytest.raises(ConfigError, match=says):
        parse_experiment(values, "test")


def finish(run: Run, rounds: range) -> None:
    """These rounds, as if every stage had ended well."""
    if "problems.prepare" not in {entry.stage for entry in run.ledger.stages()}:
        run.ledger.append(StageEntry("problems.prepare", 1.0, 0))
    for number in rounds:
        generate(run, number, MadeUpSampler)
        write_groups(run, number)
        train(run, (number,))
        for step in round_steps(number):
            run.ledger.append(StageEntry(step.label, 1.0, 0))


def test_weights_stay_until_the_last_round_that_samples_with_them(tmp_path: Path) -> None:
    run = synchronised(tmp_path, 5, offset=2)
    finish(run, range(2))
    why = {one.name: one.needed_for for one in candidates(run, CleaningRules.parse(["checkpoints=0"]))}
    assert why["round_00/4_checkpoint/oapl/epoch_01"] == "round 3 samples with it"
    assert why["round_01/4_checkpoint/oapl/epoch_01"] == "round 2 starts from it"


def test_a_fork_shares_the_checkpoints_that_its_later_rounds_sample_with(tmp_path: Path) -> None:
    parent = synchronised(tmp_path, 5, offset=2)
    finish(parent, range(3))
    new = fork(parent, "forked", 3, ["rounds.3.epochs=2"]).run
    generate(new, 3, MadeUpSampler)
    write_groups(new, 3)
    job = make_job(new, 3)
    assert job.behavior == new.checkpoint(0, 1)
    assert job.lag_steps == 2 * STEPS


def test_a_fork_whose_later_rounds_would_sample_with_removed_weights_is_refused(tmp_path: Path) -> None:
    parent = synchronised(tmp_path, 4)
    finish(parent, range(4))
    going = [one for one in candidates(parent, CleaningRules.parse(["checkpoints=0"])) if one.round == 0]
    run_on = [one for one in going if one.needed_for == "the evaluation measures it"]
    assert run_on == going, "nothing else needs it here"
    remove(parent, [type(one)(**{**one.__dict__, "needed_for": None}) for one in going])
    with pytest.raises(DataError, match="round_00/4_checkpoint/oapl/epoch_01"):
        fork(parent, "forked", 2, ["sync.offset_rounds=2"])
