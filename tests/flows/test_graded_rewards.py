"""A whole run whose reward is graded: what each stage wrote is compared with the function itself."""

import json
import re
from pathlib import Path

import polars as pl
import pytest

from oapl_core.run_folder.run import Run
from tests.graded_reward import RIGHT_FROM, score
from tests.whole_run import oapl, small_demo

pytestmark = pytest.mark.slow  # minutes


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("graded")
    reward = f'reward={{function = "tests.graded_reward:score", columns = ["characters"], right_from = {RIGHT_FROM}}}'
    changes = ["pretrain.epochs=4", "verifier.stop_at_first_failure=false", reward]
    oapl(["run", *small_demo(folder), *changes])
    return Run.open(folder / "runs" / "demo-seed0")


def judged(run: Run, number: int) -> pl.DataFrame:
    """A round's rollouts with their verdicts."""
    rollouts = pl.read_parquet(run.rollouts(number) / "*.parquet").select("rollout_id", "text")
    return rollouts.join(pl.read_parquet(run.verdicts(number) / "*.parquet"), on="rollout_id")


def test_every_verdict_has_what_the_function_says(run: Run) -> None:
    for number in range(2):
        rows = judged(run, number)
        assert not (rows["outcome"] == "verifier_error").any()
        for row in rows.iter_rows(named=True):
            value, columns = score({}, row["text"], row | {"reward": float(row["outcome"] == "passed")})
            assert row["reward"] == pytest.approx(value, abs=1e-6) == pytest.approx(row["reward_function"], abs=1e-6)
            assert row["reward_characters"] == columns["characters"]
        partial = rows.filter((pl.col("outcome") == "wrong_answer") & (pl.col("tests_passed") > 0))
        assert rows["reward"].n_unique() > 10 and partial.height > 0


def test_the_filter_keeps_groups_with_an_answer_from_the_threshold_on(run: Run) -> None:
    for number in range(2):
        rows = judged(run, number)
        best = rows.group_by("problem_id").agg(pl.col("reward").max())
        kept = pl.read_parquet(run.groups(number)).join(rows.select("rollout_id", right="reward"), on="rollout_id")
        assert set(kept["problem_id"]) == set(best.filter(pl.col("reward") >= RIGHT_FROM)["problem_id"])
        assert (kept["reward"] == kept["right"]).all()
        assert 0 < kept["problem_id"].n_unique() < best.height


def test_training_counts_as_right_what_reaches_the_threshold(run: Run) -> None:
    (lines,) = (run.round_dir(0) / "4_checkpoint").glob("*/epoch_01/training_metrics.jsonl")
    steps = [json.loads(line) for line in lines.read_text().splitlines()]
    counted = sum(step["right_share"] * step["sequences"] for step in steps)
    rewards = pl.read_parquet(run.groups(0))["reward"]
    seen = sum(step["sequences"] for step in steps)
    assert seen == rewards.len(), "each row once"
    assert counted == pytest.approx((rewards >= RIGHT_FROM).sum(), abs=1e-3)


def test_evaluation_report_and_figures_show_the_mean_of_the_same_numbers(run: Run, tmp_path: Path) -> None:
    answers = pl.read_parquet(run.evaluation())
    details = run.ledger.artifacts()[run.name(run.evaluation())].details["heldout"]
    report = (run.root / "report" / "report.md").read_text()
    table = report[report.index("Pass rates of held-out problems") :].split("\n\n", 2)[1]
    oapl(["figures", str(run.root), "--to", str(tmp_path)])
    drawn = pl.read_csv(tmp_path / "mean_reward.csv")
    heldout = answers.filter(split="heldout")
    for checkpoint, measured in details.items():
        rewards = heldout.filter(checkpoint=checkpoint)["reward"]
        mean = float(rewards.to_numpy().mean())
        assert measured["mean_reward"] == pytest.approx(mean, abs=1e-6)
        assert measured["pass_at_k"]["1"][0] == pytest.approx((rewards >= RIGHT_FROM).mean(), abs=1e-6)
        assert f" {mean:.3f} (" in table.replace("*", ""), table  # the chosen one stands in bold
        assert any(value == pytest.approx(mean, abs=1e-3) for value in drawn["mean_reward"]), drawn
    assert f"Correct: a reward of {RIGHT_FROM:g} or more." in report
    page = (run.root / "report" / "round_00.html").read_text()
    shown = [float(value) for value in re.findall(r'class="outcome \w+">[a-z ]+ (-?[\d.]+)</span>', page)]
    known = judged(run, 0)["reward"].to_list()
    assert shown and all(min(abs(one - value) for one in known) < 0.006 for value in shown), shown
