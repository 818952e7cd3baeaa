"""Rounds that share one optimiser are one training; what they pass on is an artifact, never replaced unsaid."""

from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from oapl_core.changing.cleaning import CleaningRules, candidates, remove
from oapl_core.changing.redoing import Again, put_aside
from oapl_core.errors import DataError
from oapl_core.run_folder.checking import findings
from oapl_core.run_folder.ledger import RemovalEntry
from oapl_core.run_folder.optimizer_state import require_state
from oapl_core.run_folder.recorded import temporary
from oapl_core.run_folder.run import Run
from oapl_core.run_folder.storage import stored_files, total
from oapl_core.settings.experiment_file import parse_experiment
from oapl_core.settings.training import TrainingConfig
from oapl_core.training.job import make_job
from oapl_core.training.layouts.batching import epoch_order
from oapl_core.training.saving.continuation import LET_GO
from oapl_core.training.train import train
from tests.core.training.forked_training import trained
from tests.core.training.made_round import made_groups, make_run, train_in_a_process, write_groups

Rows = list[dict[str, Any]]
CONSTANT: dict[str, Any] = {
    "warmup_share": 0.0,
    "floor_share": 1.0,
    "trackers": [],
    "save_steps": 1,
    "peak_tflops": 1.0,
}


@pytest.fixture(scope="module")
def rows(sharp_model: Path) -> Rows:
    """24 rollouts, no two of one length: the same step sums in the same order wherever its rows lie in the file."""
    by_length = {len(row["prompt_ids"] + row["response_ids"]): row for row in made_groups(sharp_model, groups=60)}
    chosen = [row | {"group": i // 4, "problem_id": f"p{i // 4}"} for i, row in enumerate(by_length.values())][:24]
    assert len(chosen) == 24
    return chosen


def run_of(folder: Path, model: Path, rounds: int = 2, epochs: int = 1, **training: Any) -> Run:
    """Rounds that the base model samples, so that a groups file made beforehand is theirs."""
    values = make_run(folder / "template", model, **(CONSTANT | training)).config.model_dump(mode="json")
    values |= {"runs_dir": str(folder), "rounds": [{"epochs": epochs}] * rounds, "sync": {"every_rounds": 9}}
    return Run.create(parse_experiment(values, "test"))


def in_this_order(rows: Rows, run: Run, number: int, epoch: int) -> Rows:
    """The rows, so placed that round ``number`` takes them in the order in which round 0 does in its ``epoch``."""
    placed = [rows[0]] * len(rows)
    wanted, taken = (epoch_order(len(rows), run.config.seed, r, e) for r, e in ((0, epoch), (number, 1)))
    for place, row in zip(taken, wanted, strict=True):
        placed[place] = rows[row]
    return placed


def prepared(folder: Path, model: Path, rows: Rows, rounds: int, **training: Any) -> Run:
    """Rounds of the same data, in the orders in which the epochs of a single round take them."""
    run = run_of(folder, model, rounds, **training)
    for number in range(rounds):
        write_groups(run, in_this_order(rows, run, number, number + 1), number)
    return run


def in_one_round(folder: Path, model: Path, rows: Rows, epochs: int, **training: Any) -> Run:
    """The same steps as those of so many rounds."""
    run = run_of(folder, model, 1, epochs, **training)
    write_groups(run, rows)
    return run


def words(run: Run) -> list[str]:
    return [f"{run.root}:{number}" for number in range(len(run.config.rounds))]


def gap(one: Path, other: Path) -> float:
    a, b = (load_file(folder / "model.safetensors") for folder in (one, other))
    return max(float((a[name].double() - b[name].double()).abs().max()) for name in a)


@pytest.mark.parametrize(
    ("rounds", "dtype"),
    [
        pytest.param(2, "float32", marks=pytest.mark.slow),
        pytest.param(3, "float32", marks=pytest.mark.slow),
        pytest.param(3, "bfloat16", marks=pytest.mark.slow),
    ],
)
def test_rounds_that_go_on_are_one_round_of_as_many_steps(
    tmp_path: Path, sharp_model: Path, rows: Rows, rounds: int, dtype: str
) -> None:
    together = in_one_round(tmp_path / "together", sharp_model, rows, rounds, dtype=dtype)
    continued, fresh = (
        prepared(tmp_path / state, sharp_model, rows, rounds, dtype=dtype, optimizer_state=state)
        for state in ("continued", "fresh")
    )
    first, *later = words(continued)
    output = trained(*words(together), first, f"{later[0]}:2", *later, *words(fresh))
    assert "epochs done: 0 of 1, and 2 steps" in output, "killed between two rounds, and within one"
    for number in range(rounds):
        expected = together.checkpoint(0, number + 1)
        assert gap(expected, continued.policy(number + 1)) == 0, "to the bit"
        assert (gap(expected, fresh.policy(number + 1)) > 1e-4) == (number > 0), "another training"
    assert_passed_on(continued)


def assert_passed_on(run: Run) -> None:
    """States are artifacts, inputs of the next round, and gone when it was trained."""
    *kept, last = [run.name(run.optimizer_state(number)) for number in range(len(run.config.rounds))]
    made, removed = run.ledger.artifacts(), run.ledger.removals()
    assert last not in made, "nobody follows"
    assert list(removed) == kept
    for number, name in enumerate(kept):
        assert made[run.name(run.policy(number + 2))].inputs[name] == made[name].sha256 == removed[name].sha256
        assert removed[name].bytes > 12 * 1000
    assert not list(run.root.rglob("optimizer_state"))
    assert all(make_job(run, number).is_trained for number in range(len(run.config.rounds)))
    assert not list(findings_with_damage(run))


def findings_with_damage(run: Run) -> list[str]:
    return [finding.name for finding in findings(run) if finding.wrong]


@pytest.mark.slow
@pytest.mark.parametrize("zero_stage", [0, 1, 3])
def test_ranks_pass_on_what_each_holds(tmp_path: Path, sharp_model: Path, rows: Rows, zero_stage: int) -> None:
    settings: dict[str, Any] = {"processes": 2, "zero_stage": zero_stage}
    together = in_one_round(tmp_path / "together", sharp_model, rows, 2, **settings)
    rounds = prepared(tmp_path / "rounds", sharp_model, rows, 2, optimizer_state="continued", **settings)
    train_in_a_process(together)
    for number in (0, 1):
        train_in_a_process(rounds, number)
    assert gap(together.checkpoint(0, 2), rounds.policy(2)) < 1e-6
    assert_passed_on(rounds)


@pytest.mark.slow
def test_a_state_that_was_not_recorded_is_made_again_with_the_same_bytes(
    tmp_path: Path, sharp_model: Path, rows: Rows
) -> None:
    """Killed between the last epoch's export and the state's line of the ledger."""
    run = prepared(tmp_path, sharp_model, rows, 2, optimizer_state="continued")
    first, second = words(run)
    trained(first)
    state = run.optimizer_state(0)
    before = run.ledger.artifacts()[run.name(state)].sha256
    *lines, last = (run.root / "ledger.jsonl").read_bytes().splitlines(keepends=True)
    assert b"optimizer_state" in last
    (run.root / "ledger.jsonl").write_bytes(b"".join(lines))
    state.rename(temporary(state))
    trained(first, second)
    assert run.ledger.artifacts()[run.name(state)].sha256 == before
    assert_passed_on(run)


def with_states(folder: Path, model: Path, rounds: int = 4) -> Run:
    """Rounds that are trained but for the last, with something in place of weights and states; all states are there."""
    run = run_of(folder, model, rounds, optimizer_state="continued")
    for number in range(rounds - 1):
        write_groups(run, [], number)
        job = make_job(run, number)
        for path in (job.checkpoint(1), job.kept_state):
            assert path is not None
            with run.writing(path, job.inputs, job.settings) as draft:
                draft.path.mkdir()
                (draft.path / "weights").write_bytes(bytes(1000))
    write_groups(run, [], rounds - 1)
    return run


def let_states_go(run: Run, *numbers: int) -> None:
    for number in numbers:
        entry = run.ledger.artifacts()[run.name(run.optimizer_state(number))]
        run.ledger.append(RemovalEntry(entry.artifact, entry.sha256, entry.bytes, LET_GO))
        (run.root / entry.artifact / "weights").unlink()
        (run.root / entry.artifact).rmdir()


def test_a_state_that_is_lost_is_one_line_that_says_where_to_begin_again(tmp_path: Path, sharp_model: Path) -> None:
    run = with_states(tmp_path, sharp_model)
    require_state(run, 3)
    let_states_go(run, 1, 2)
    with pytest.raises(DataError) as raised:
        train(run, 3)
    assert str(raised.value) == (
        f"{run.root}: round 3 continues from round_02/4_checkpoint/oapl/optimizer_state, which was removed (the next "
        f"round is trained); `oapl run {run.root} --redo training --round 1`, then --round 2 and so on to 2, makes it "
        f"again, `oapl fork {run.root} NAME --round 3 training.optimizer_state=fresh` does without it"
    )
    assert not run.checkpoints(3).exists(), "nothing was trained"


def test_a_state_that_was_never_made_is_refused(tmp_path: Path, sharp_model: Path) -> None:
    run = run_of(tmp_path, sharp_model, 2, optimizer_state="continued")
    with pytest.raises(DataError, match="round 1 continues from .*/optimizer_state, which is not there; `oapl run"):
        make_job(run, 1)


def test_a_state_that_an_earlier_version_kept_is_refused(tmp_path: Path, sharp_model: Path) -> None:
    """It consists of DeepSpeed's files of one number of ranks."""
    run = with_states(tmp_path, sharp_model, 2)
    require_state(run, 1)
    job = make_job(run, 0)
    assert job.kept_state is not None
    with run.writing(job.kept_state, job.inputs, job.settings) as draft:
        draft.path.mkdir()
        draft.details = {"layout": {"ranks": 1, "zero_stage": 1}}
    with pytest.raises(DataError, match="is of an earlier version; `oapl run .* --redo training --round 0` makes it "):
        train(run, 1)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"warmup_share": 0.1, "floor_share": 1}, "constant learning rate"),
        ({"warmup_share": 0}, "constant learning"),
        ({"warmup_share": 0, "floor_share": 1, "adapter": {}}, "cannot go with an adapter"),
    ],
)
def test_what_would_begin_anew_in_each_round_is_refused(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        TrainingConfig(optimizer_state="continued", **settings)
    TrainingConfig(**settings)


def test_checkpoints_of_a_run_do_not_depend_on_the_setting_but_on_the_state() -> None:
    constant: dict[str, Any] = {"warmup_share": 0.0, "floor_share": 1.0}
    assert TrainingConfig(**constant).slice == TrainingConfig(optimizer_state="continued", **constant).slice


def test_training_again_is_refused_before_anything_is_put_aside(tmp_path: Path, sharp_model: Path) -> None:
    run = with_states(tmp_path, sharp_model)
    let_states_go(run, 0, 1)
    with pytest.raises(DataError, match="round 2 continues from .* --redo training --round 0`, then --round 1 and"):
        put_aside(run, Again("training", 2), print)
    assert run.checkpoint(2, 1).exists()
    assert put_aside(run, Again("training", 0, and_all_after=True), print)
    assert not run.checkpoint(2, 1).exists()


def test_cleaning_takes_what_no_round_goes_on_from(tmp_path: Path, sharp_model: Path) -> None:
    run = with_states(tmp_path, sharp_model)
    assert total(stored_files(run.root))["optimiser states"] == 3000
    found = {one.name: one.needed_for for one in candidates(run, CleaningRules()) if one.kind == "optimiser states"}
    names = [run.name(run.optimizer_state(number)) for number in range(3)]
    assert found == {name: f"round {number + 1} resumes from it" for number, name in enumerate(names)}
    fresh = Run(run.root, run.config.model_copy(update={"training": TrainingConfig()}))
    going = [one for one in candidates(fresh, CleaningRules()) if one.kind == "optimiser states"]
    assert [one.needed_for for one in going] == [None] * 3
    assert remove(fresh, going) == 3000
    assert [entry.rule for entry in run.ledger.removals().values()] == ["oapl clean"] * 3
    assert make_job(run, 1).inputs[names[0]], "what was made from it is still what it was"
