"""A small run on real vLLM, sandbox and DeepSpeed, measured after its first round, killed there and continued."""

import json
from dataclasses import dataclass

import polars as pl
import pytest

from oapl_core.planning.measurements import deciding
from oapl_core.planning.plan import finished, steps
from oapl_core.run_folder.run import Run
from oapl_extras.interim.stage import results
from tests.whole_run import kill_when, made_more_than_once, oapl, small_demo

pytestmark = pytest.mark.slow  # 140 seconds of a core; tests/extras/interim and test_weeks.py ask the same of it

STEP = "round 0: interim evaluation"


@dataclass(frozen=True)
class Story:
    run: Run
    tracked_at: list[str]
    """Axes that the tracker had when the second round began to sample."""
    plan: str


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    folder = tmp_path_factory.mktemp("interim")
    changes = ["pretrain.epochs=4", "evaluation.every_rounds=1", 'training.trackers=["tensorboard"]']
    arguments = ["run", *small_demo(folder, train=48), *changes]
    root = folder / "runs" / "demo-seed0"
    answers = root / "round_00" / "5_evaluation"
    kill_when(arguments, folder / "killed.log", lambda: any(answers.rglob("part-*.parquet")))
    assert not list(answers.glob("*.json"))
    sampling = root / "round_01" / "1_rollouts"
    kill_when(arguments, folder / "killed_again.log", sampling.exists)
    record = (root / "logs" / "trackers" / "tensorboard.jsonl").read_text().splitlines()[1:]
    oapl(arguments)
    return Story(Run.open(root), [json.loads(line)["axis"] for line in record], oapl(["status", str(root)]))


def test_every_step_is_finished_and_nothing_was_made_twice(story: Story) -> None:
    titles = [step.title for step in finished(story.run)]
    assert titles == [step.title for step in steps(story.run.config)] and STEP in titles
    assert made_more_than_once(story.run) == ["report"], "once with the first numbers"
    assert STEP in story.plan


def test_the_first_number_is_there_before_the_second_round_samples(story: Story) -> None:
    ((number, mean),) = deciding(story.run)
    assert number == 0 and 0 <= mean <= 1
    assert story.tracked_at.count("heldout") == 2, "base and round 0"


def test_the_end_has_the_numbers_of_the_first_and_the_report_shows_them(story: Story) -> None:
    run = story.run
    during = run.ledger.artifacts()[run.name(results(run, 0))].details["heldout"]
    at_the_end = run.ledger.artifacts()[run.name(run.evaluation())].details["heldout"]
    assert during == {name: at_the_end[name] for name in ("base", "round 0")}
    rows = pl.read_parquet(run.evaluation()).filter(split="heldout")
    assert set(rows.group_by("checkpoint").len()["len"]) == {12 * 4}
    report = (run.report / "report.md").read_text()
    assert "## Measured during the run" in report and f"{100 * during['round 0']['pass_at_k']['1'][0]:.1f} %" in report
