"""A run whose rounds have settings of their own, on the real engine: after a kill the same; other settings fork it."""

from pathlib import Path

import polars as pl
import pytest

from oapl_core.planning.plan import finished, steps
from oapl_core.run_folder.run import Run
from tests.whole_run import called, content, kill_when, made_more_than_once, oapl, small_demo

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]

ROUNDS = """[
    {problems = 24},
    {problems = 24, sampling = {max_tokens = 28, group_size = 6}, training = {learning_rate = 2e-4}},
    {problems = 24, sampling = {max_tokens = 48, temperature = 0.7}, objective = {regression_temperature = 0.2}},
]"""
LENGTHS, SIZES, TEMPERATURES = [20, 28, 48], [4, 6, 4], [1.0, 1.0, 0.7]
RATES, BETAS = [5e-4, 2e-4, 5e-4], [0.1, 0.1, 0.2]


def arguments(folder: Path) -> list[str]:
    folder.mkdir()
    changes = [f"rounds={ROUNDS}", "sampling.max_tokens=20", "pretrain.epochs=4", "sampling.problems_per_part=8"]
    # without the demo's own rounds, which the list replaces
    kept = [one for one in small_demo(folder, train=48) if not one.startswith("rounds.")]
    return ["run", *kept, *changes]


def test_a_killed_run_of_a_length_curriculum_ends_as_one_that_was_not(tmp_path: Path) -> None:
    undisturbed, disturbed = arguments(tmp_path / "undisturbed"), arguments(tmp_path / "disturbed")
    oapl(undisturbed)
    expected = Run.open(tmp_path / "undisturbed" / "runs" / "demo-seed0")
    part = tmp_path / "disturbed" / "runs" / "demo-seed0" / "round_02" / "1_rollouts" / "part-00000.parquet"
    kill_when(disturbed, tmp_path / "killed.log", part.exists)
    oapl(disturbed)
    found = Run.open(tmp_path / "disturbed" / "runs" / "demo-seed0")

    assert len(finished(found)) == len(steps(found.config))
    assert made_more_than_once(found) == []
    ours, theirs = found.ledger.artifacts(), expected.ledger.artifacts()
    assert sorted(ours) == sorted(theirs)
    # learnt and sampled alike: every row, and the hash of every checkpoint's weights
    assert not [
        name
        for name in ours
        if name not in ("report", "base_model.json") and content(found, ours[name]) != content(expected, theirs[name])
    ]
    for number in range(3):
        rows = pl.read_parquet(found.rollouts(number) / "*.parquet")
        assert rows["max_tokens"].unique().to_list() == [LENGTHS[number]]
        assert len(rows) == 24 * SIZES[number]
        assert rows["temperature"].unique().to_list() == [pytest.approx(TEMPERATURES[number])]
        trained = ours[found.name(found.checkpoint(number, 1))].config
        assert trained["training"]["learning_rate"] == RATES[number]
        assert trained["objective"]["regression_temperature"] == BETAS[number]
        # the engine's log-probs are the trainer's, at each round's temperature
        assert ours[found.name(found.mismatch(number))].details["mean"] < 1e-4


def test_a_change_of_a_rounds_settings_names_the_fork_that_makes_it(tmp_path: Path) -> None:
    asked = arguments(tmp_path / "run")
    root = tmp_path / "run" / "runs" / "demo-seed0"
    kill_when(asked, tmp_path / "killed.log", (root / "round_00" / "1_rollouts" / "part-00000.parquet").exists)
    for number, state in ((0, "begun so"), (2, "not begun")):
        refused = called(*asked, f"rounds.{number}.sampling.max_tokens=40")
        assert refused.returncode == 2
        (line,) = refused.stderr.splitlines()
        assert f"rounds.{number}.sampling.max_tokens was" in line
        assert f"round {number} was {state}" in line and f"`oapl fork {root} NAME --round {number} KEY=VALUE`" in line
