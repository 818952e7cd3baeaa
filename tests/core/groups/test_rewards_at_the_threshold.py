"""A reward that equals its threshold is correct for every reader, and the next smaller one that can be stored is not.

Tables keep float32, in which 0.9 is less and 0.35 is more than the numbers that a person writes.
"""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from oapl_core import tables
from oapl_core.evaluation.measures import comparisons, measures
from oapl_core.evaluation.scores import Resampling, Score, score
from oapl_core.groups.build import build
from oapl_core.rollouts.difficulty import known_so_far
from oapl_core.run_folder.run import Run
from oapl_core.settings.experiment_file import parse_experiment
from oapl_core.settings.reward import RewardConfig, threshold
from oapl_core.verdicts.environment_rewards import Played
from oapl_core.verdicts.outcomes import Outcome
from oapl_core.verdicts.rewards import Rewarder
from oapl_core.verdicts.verifier import Verdict
from oapl_extras.exchange.imported_rows import verdict_row
from oapl_extras.watch.live import _verdicts_of
from tests.core.groups.test_build import rollout, verdict, write_round
from tests.core.groups.test_thresholds import rows_of

THRESHOLDS = [0.9, 0.7, 0.35, 0.6, -0.1]


def below(right_from: float) -> float:
    """The next smaller number that a table can hold."""
    return float(np.nextafter(np.float32(right_from), np.float32(-np.inf)))


def stored(rewards: list[float], folder: Path) -> list[float]:
    """The rewards as they come back from a table."""
    tables.write_table(folder / "verdicts", tables.VERDICTS, [verdict("p", i, r) for i, r in enumerate(rewards)])
    found: list[float] = tables.read_table(folder / "verdicts", tables.VERDICTS)["reward"].to_pylist()
    return found


@pytest.mark.parametrize("right_from", THRESHOLDS)
def test_evaluations_and_reports(right_from: float, tmp_path: Path) -> None:
    reward = RewardConfig(right_from=right_from)
    rows = rows_of([[*stored([right_from, below(right_from)], tmp_path)]], right_from)
    resampling = Resampling(10, 0, reward)
    assert Score.of("", rows, resampling).judged_P == {"p0": (2, 1)}
    assert measures(rows, resampling, (1,))["pass_at_k"]["1"][0] == 0.5
    (line,) = comparisons({"a": rows[1:], "b": rows[:1]}, [1], resampling)
    assert line["difference"] == 1.0
    for dtype in (pl.Float32, pl.Float64):
        frame = pl.DataFrame(rows, schema_overrides={"reward": dtype}, infer_schema_length=None)
        assert score(frame, resampling)[0].judged_P == {"p0": (2, 1)}


def made_run(folder: Path, right_from: float) -> Run:
    """A round of two problems: one with an answer at the threshold, one whose answers are all a little worse."""
    values = {
        "name": "g",
        "runs_dir": folder,
        "model": folder,
        "problems": dict.fromkeys(("train", "validation", "heldout"), folder / "unused.jsonl"),
        "rounds": [{"keep": "mixed"}, {"problems": 1, "draw": "difficulty"}],
        "reward": {"right_from": right_from},
    }
    run, low = Run.create(parse_experiment(values, "test")), below(right_from)
    rewards = {"some": [right_from, low], "none": [low, low]}
    rows = [rollout(name, i) for name in rewards for i in range(2)]
    write_round(
        run, [rows], [[verdict(name, i, r, right_from) for name, mine in rewards.items() for i, r in enumerate(mine)]]
    )
    return run


@pytest.mark.parametrize("right_from", THRESHOLDS)
def test_groups_what_is_drawn_next_and_the_page_of_a_run_as_it_goes(right_from: float, tmp_path: Path) -> None:
    run = made_run(tmp_path, right_from)
    build(run, 0)
    assert pl.read_parquet(run.groups(0))["problem_id"].to_list() == ["some", "some"]
    entry = run.ledger.artifacts()[run.name(run.groups(0))]
    assert pl.read_parquet(run.groups(0))["correct"].to_list() == [True, False]
    assert entry.details["correct_rollouts"] == 1
    assert {name: known.correct for name, known in known_so_far(run, 1).items()} == {"some": 1, "none": 0}
    (part,) = run.verdicts(0).glob("*.parquet")
    assert _verdicts_of(part) == (4, 1, 0)


@pytest.mark.parametrize("right_from", THRESHOLDS)
def test_a_reward_is_what_a_table_holds_as_soon_as_it_is_one(right_from: float, tmp_path: Path) -> None:
    reward = RewardConfig.model_validate({"parts": {"verdict": right_from}, "right_from": right_from})
    with Rewarder(reward, 100) as rewarder:
        given = iter([Verdict("p", Outcome.PASSED, "1", "full")])
        (found,) = rewarder.stream([{"problem_id": "p"}], [""], [1], given)
    assert found.row("r", right_from)["correct"] is True and found.reward is not None
    assert [found.reward] == stored([found.reward], tmp_path)


@pytest.mark.parametrize("turns", [[0.3, 0.3, 0.3], [0.1] * 9, [0.9]])
def test_turns_that_sum_up_to_the_threshold(turns: list[float]) -> None:
    """Whose sum in float64 may be 0.8999999999999999."""
    played = Played.of("stop", {"turn_rewards": turns})
    blank = Verdict("p", Outcome.NO_ANSWER, None, "full")
    found = played.verdict(blank, threshold(RewardConfig(right_from=0.9)))
    assert found.outcome is Outcome.PASSED


def test_an_imported_reward_that_is_stored_as_1_is_correct() -> None:
    row: dict[str, Any] = {"rollout_id": "r", "problem_id": "p"}
    found = [verdict_row(row, one, 1.0) for one in (0.99999999, 0.999)]
    assert [(one["outcome"], one["correct"]) for one in found] == [("passed", True), ("wrong_answer", False)]
    assert verdict_row(row, 0.9, 0.9)["correct"] is True


def test_a_reward_that_no_table_can_hold_is_a_failure_and_not_infinite() -> None:
    reward = RewardConfig.model_validate({"parts": {"verdict": 1e39}})
    with Rewarder(reward, 100) as rewarder:
        (found,) = rewarder.stream([{"problem_id": "p"}], [""], [1], iter([Verdict("p", Outcome.PASSED, "1", "full")]))
    assert (found.outcome, found.reward) == (Outcome.VERIFIER_ERROR, None)
    assert found.excerpt == "reward of problem p: 1e+39 is more than float32 holds"
