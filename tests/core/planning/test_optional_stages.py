"""A stage that declares itself: plan, processes, forks, cleaning and readers of numbers ask its row, not its name."""

from dataclasses import replace
from pathlib import Path

import pytest

from oapl_core.changing.cleaning import CleaningRules, candidates
from oapl_core.changing.forking import fork
from oapl_core.planning import measurements, plan, stages
from oapl_core.planning.plan import Step, finished, module_of, steps
from oapl_core.planning.preflight import before_stage, estimate
from oapl_core.planning.stage_row import Stage
from oapl_core.run_folder.ledger import StageEntry
from oapl_core.run_folder.measurement import Measurement
from oapl_core.run_folder.run import Run
from tests.synthetic_run import Sizes, write_synthetic_run

OWN = Stage(
    "weighing",
    "weighing.weigh",
    ("6_weights/",),
    of_round=True,
    decided_by=("report",),
    scratch=lambda run, number: (run.round_dir(number) / "6_weights" / ".in_flight",),
    after=lambda config: range(len(config.rounds)),
    measured=lambda _run: [Measurement("weight", 1, 0, "round 0", "heldout", {"mean_reward": 0.5}, decides=True)],
    place="weighing.somewhere.weigh",
)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    run = write_synthetic_run(tmp_path, Sizes(train=6, validation=3, heldout=3, group=2, samples=2, epochs=(1, 1)))
    for module in (plan, measurements):
        monkeypatch.setattr(module, "OPTIONAL", (OWN,))
    monkeypatch.setitem(stages.BY_VERB, OWN.verb, OWN)
    return run


def weigh(run: Run, number: int) -> Step:
    with run.writing(run.round_dir(number) / "6_weights" / "kg.txt", {}, {}) as draft:
        draft.path.parent.mkdir(exist_ok=True)
        draft.path.write_text("1")
    (step,) = (one for one in steps(run.config) if one.title == f"round {number}: weighing")
    run.ledger.append(StageEntry(step.label, 1.0, 0))
    return step


def test_it_is_a_step_after_each_of_its_rounds_with_a_module_of_its_own(run: Run) -> None:
    titles = [step.title for step in steps(run.config)]
    assert titles[titles.index("round 0: training") + 1] == "round 0: weighing"
    assert titles[titles.index("round 1: training") + 1] == "round 1: weighing"
    (step,) = (one for one in steps(run.config) if one.title == "round 0: weighing")
    assert step.label == "weighing.weigh round 0" and module_of(step.verb) == "weighing.somewhere.weigh"
    assert module_of("groups.build") == "oapl_core.groups.build"
    assert module_of("oapl_extras.audit.audit") == "oapl_extras.audit.audit"
    assert module_of("evaluation.folders.evaluate") == "oapl_core.evaluation.folders.evaluate"
    assert estimate(run, step.verb, 0) is None
    before_stage(run, step.verb, 0)
    assert step not in finished(run)
    weigh(run, 0)
    assert step in finished(run)


def test_a_fork_carries_it_where_nothing_that_decides_it_differs(run: Run) -> None:
    step = weigh(run, 0)
    same = fork(run, "same", 1, ["training.learning_rate=1e-7"]).run
    assert step in finished(same) and (same.round_dir(0) / "6_weights" / "kg.txt").is_file()
    other = fork(run, "other", 1, ["report.shown_problems=3"]).run
    assert step not in finished(other) and not (other.round_dir(0) / "6_weights").exists()


def test_what_it_would_resume_from_stays_until_it_is_finished(run: Run) -> None:
    begun = run.round_dir(0) / "6_weights" / ".in_flight" / "half"
    begun.parent.mkdir(parents=True)
    begun.write_text("0.5")
    name = begun.relative_to(run.root).as_posix()

    def why() -> str | None:
        (mine,) = (one for one in candidates(run, CleaningRules()) if one.name == name)
        return mine.needed_for

    assert why() == "round 0: weighing resumes from it"
    weigh(run, 0)
    assert why() is None


def test_the_end_would_resume_from_parts_of_earlier_rounds_too(tmp_path: Path) -> None:
    run = write_synthetic_run(tmp_path / "parent-seed0")
    often = fork(run, "often", 1, ["evaluation.every_rounds=1"]).run
    begun = [often.evaluations(number) / "base_heldout" / "1_rollouts" / ".in_flight" for number in (0, 1)]
    for folder in begun:
        folder.mkdir(parents=True)
    assert stages.EVALUATION.scratch(often, 0) == tuple(begun)


def test_readers_of_numbers_have_its_own_beside_the_end_s(run: Run) -> None:
    assert measurements.deciding(run) == [(0, 0.5)]
    first, *end = measurements.measurements(run)
    assert first.axis == "weight" and {one.axis for one in end} == {"heldout", "validation"}
    assert {one.round for one in end} == {None}


def test_without_rounds_it_is_no_step(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "OPTIONAL", (replace(OWN, after=lambda _config: ()),))
    assert not [step for step in steps(run.config) if step.word == "weighing"]
