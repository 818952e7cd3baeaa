"""The plan: a step counts as finished only while everything it made and used is as recorded."""

from pathlib import Path

import pytest

from oapl_core.planning.plan import finished, steps, times
from oapl_core.run_folder.ledger import StageEntry
from oapl_core.run_folder.run import Run
from oapl_core.settings.experiment_file import parse_experiment


@pytest.fixture
def run(tmp_path: Path) -> Run:
    (tmp_path / "train.jsonl").write_text("{}")
    values = {
        "name": "t",
        "model": "m",
        "runs_dir": str(tmp_path / "runs"),
        "rounds": [{}],
        "problems": {"train": str(tmp_path / "train.jsonl"), "validation": "b", "heldout": "c"},
    }
    return Run.create(parse_experiment(values, "test"))


def make(run: Run, path: Path, *inputs: Path) -> None:
    with run.writing(path, run.inputs(inputs), {}) as draft:
        draft.path.write_text(path.name)


def finish_two_steps(run: Run) -> None:
    make(run, run.problems, *run.config.problems.train)
    make(run, run.prompts, run.problems)
    run.ledger.append(StageEntry("problems.prepare", 1.0, 0))
    make(run, run.rollouts(0) / "part-00000.parquet", run.prompts)
    run.ledger.append(StageEntry("rollouts.generate round 0", 2.0, 1))
    run.ledger.append(StageEntry("rollouts.generate round 0", 3.0, 0))


def titles(run: Run) -> list[str]:
    return [step.title for step in finished(run)]


def test_nothing_is_finished_at_the_start(run: Run) -> None:
    assert titles(run) == []
    assert [s.title for s in steps(run.config)][:2] == ["problems and prompts", "round 0: sampling"]


def test_finished_steps_are_those_whose_process_ended_well(run: Run) -> None:
    finish_two_steps(run)
    assert titles(run) == ["problems and prompts", "round 0: sampling"]
    run.ledger.append(StageEntry("rollouts.generate round 0", 1.0, 137))
    assert titles(run) == ["problems and prompts"]


def test_a_removed_part_reopens_its_step_and_all_after(run: Run) -> None:
    finish_two_steps(run)
    (run.rollouts(0) / "part-00000.parquet").unlink()
    assert titles(run) == ["problems and prompts"]


def test_a_changed_problem_set_reopens_everything(run: Run) -> None:
    finish_two_steps(run)
    run.config.problems.train[0].write_text("{} ")
    assert titles(run) == []


def test_a_remade_input_reopens_what_was_made_from_it(run: Run) -> None:
    finish_two_steps(run)
    with run.writing(run.prompts, run.inputs([run.problems]), {}) as draft:
        draft.path.write_text("other prompts")
    assert titles(run) == ["problems and prompts"]


def test_seconds_of_interrupted_and_continued_processes_add_up(run: Run) -> None:
    finish_two_steps(run)
    assert [(time.step.title, time.seconds, time.processes) for time in times(run)] == [
        ("problems and prompts", 1.0, 1),
        ("round 0: sampling", 5.0, 2),
    ]


@pytest.mark.parametrize(("beside_s", "added_s"), [(7.0, 2.0), (4.0, 0.0)])
def test_a_step_beside_another_adds_what_it_outlasts_that_one_by(run: Run, beside_s: float, added_s: float) -> None:
    run.ledger.append(StageEntry("rollouts.generate round 0", 5.0, 0))
    run.ledger.append(StageEntry("verdicts.verify round 0 follow", beside_s, 0))
    assert [time.added_s for time in times(run)] == [5.0, added_s]
