"""Rewards that are not 0 or 1 in an evaluation: ledger, card, report and figures say pass@k and the mean reward."""

from pathlib import Path

import pytest

from oapl_core.evaluation.cards import card, card_text
from oapl_core.evaluation.evaluate import evaluate
from oapl_core.reports.results import heldout_table, results
from oapl_core.reports.sections.heldout import validation_table
from oapl_core.run_folder.run import Run
from oapl_core.run_folder.run_record import RunRecord
from oapl_core.settings.reward import RewardConfig
from oapl_core.tables import EVALUATIONS, read_table
from oapl_extras.compare import series
from oapl_extras.compare.arms import Means
from oapl_extras.compare.side_by_side import write_figures
from oapl_extras.compare.side_tables import rewards_table
from oapl_extras.compare.tracks import read_track
from tests.core.evaluation.test_run_card import JUDGE, trained
from tests.extras.compare.measured_run import write_measured_run
from tests.sampling_run import MadeUpSampler

REWARD = {"parts": {"verdict": 0.6, "length": 0.01}, "right_from": 0.3}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    made = trained(tmp_path_factory.mktemp("rewarded"), reward=REWARD)
    evaluate(made, MadeUpSampler, JUDGE)
    return made


def test_every_row_has_the_reward_and_the_ledger_both_numbers(run: Run) -> None:
    rows = read_table(run.evaluation(), EVALUATIONS).to_pylist()
    for row in rows:
        expected = 0.6 * (row["outcome"] == "passed") - 0.01 * row["response_tokens"]
        assert row["reward"] == pytest.approx(expected, abs=1e-6)
    details = run.ledger.artifacts()[run.name(run.evaluation())].details
    for label, measured in details["heldout"].items():
        mine = [row for row in rows if row["checkpoint"] == label and row["split"] == "heldout"]
        passed = sum(row["outcome"] == "passed" for row in mine) / len(mine)
        average = sum(row["reward"] for row in mine) / len(mine)
        assert 0 < passed < 1
        assert measured["pass_at_k"]["1"][0] == pytest.approx(passed, abs=1e-6), "correct from 0.3 on"
        assert measured["mean_reward"] == pytest.approx(average) == pytest.approx(measured["reward"][0], abs=1e-6)


def test_the_card_says_the_reward_and_both_numbers(run: Run, tmp_path: Path) -> None:
    content = card.read(run.card())
    assert content["asked"]["reward"]["parts"]["length"] == 0.01 and content["asked"]["right_from"] == 0.3
    assert content["asked"]["reward"]["longest"] == run.config.sampling.max_tokens, "as in training, whatever is asked"
    text = run.card_text().read_text()
    label, measured = next(iter(content["results"].items()))
    assert "| pass@1 | mean reward |" in text and f"{measured['reward'][0]:.3f} (" in text
    assert "correct from 0.3" in text and "is not pass@1" in text
    line = next(card_text.headline(content))
    assert line.startswith(f"{label}: mean reward {measured['reward'][0]:.3f}") and "pass@1" in line
    plain = trained(tmp_path)
    evaluate(plain, MadeUpSampler, JUDGE)
    without = card.read(plain.card())
    assert "reward" not in without["asked"] and "mean reward" not in plain.card_text().read_text().split("## Rules")[0]


def test_the_report_shows_the_mean_reward_beside_pass_at_k(run: Run) -> None:
    entry = run.ledger.artifacts()[run.name(run.evaluation())]
    measured = results(RunRecord(run))
    assert measured is not None
    for shown in (heldout_table(measured), validation_table(measured)):
        place = shown.columns.index("mean reward")
        split = "heldout" if "held-out" in shown.title else "validation"
        means = [f"{one['mean_reward']:.3f}" for one in entry.details[split].values()]
        assert [row[place].partition(" (")[0] for row in shown.rows] == means
    assert "Correct: a reward of 0.3 or more." in heldout_table(measured).note


def test_figures_show_it_where_it_is_another_number(tmp_path: Path) -> None:
    rewarded = read_track(write_measured_run(tmp_path / "a", reward=RewardConfig(right_from=0.5)), "new")
    plain = read_track(write_measured_run(tmp_path / "b"), "old")
    curves = series.mean_reward([rewarded, plain], lambda one: one.steps)
    assert {one.label for one in curves} == {"new"}
    accuracy = series.accuracy([rewarded], lambda one: one.steps)
    assert [[p.y for p in one.points] for one in curves] == [[p.y for p in one.points] for one in accuracy]
    table = rewards_table(curves)
    assert table is not None and [row[3] for row in table.rows][:2] == ["base", "round 1"]
    page = write_figures([rewarded, plain], tmp_path / "page").read_text()
    assert "Mean reward of held-out answers" in page and (tmp_path / "page" / "mean_reward.csv").exists()
    write_figures([plain], tmp_path / "other")
    assert not (tmp_path / "other" / "mean_reward.csv").exists()
    scores = [rewarded.milestones[-1].scores["aime"]]
    means = Means.of_rewards(scores)
    assert means is not None and means.all.mean == pytest.approx(Means.of(scores, 1).all.mean)  # type: ignore[union-attr]
    assert Means.of_rewards([plain.milestones[-1].scores["aime"]]) is None
