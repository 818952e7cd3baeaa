"""Stored rollouts get other rewards without being sampled again: a version beside the old one, and a choice of one."""

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from typer.testing import CliRunner

from deployments.cli import app
from oapl_core import tables
from oapl_core.errors import ConfigError, DataError
from oapl_core.groups.build import build
from oapl_core.run_folder.run import Run
from oapl_core.verdicts.regrade import begin, regrade, use
from oapl_core.verdicts.verify import verify
from tests.core.verdicts.test_rewards import HALF
from tests.core.verdicts.test_verify import made_run

PARTS: dict[str, Any] = {
    "verifier": {"stop_at_first_failure": False},
    "reward": {"parts": {"tests": 1.0}, "right_from": 0.3},
}


def judged(tmp_path: Path) -> Run:
    """Answers of which two pass one test of three, judged as the run has it; with prompts."""
    run = made_run(tmp_path, parts=2, right=HALF)
    with run.writing(run.prompts, {}, {}) as draft:
        prompts = [{"problem_id": "p", "split": "train", "prompt": "add", "prompt_ids": [1]}]
        draft.rows = tables.write_table(draft.path, tables.PROMPTS, prompts)
    (run.rollouts(0) / "part-00001.parquet").unlink()  # a problem lies in one part
    verify(run, 0)
    return run


def content(run: Run) -> dict[str, bytes]:
    """Every verdict file of the run's own version."""
    return {path.name: path.read_bytes() for path in run.verdicts(0, "").iterdir()}


def kept(run: Run) -> list[float]:
    build(run, 0)
    return pl.read_parquet(run.groups(0))["reward"].to_list()


def test_a_version_lies_beside_the_old_one_and_groups_use_what_was_chosen(tmp_path: Path) -> None:
    run = judged(tmp_path)
    before, third = content(run), pytest.approx(1 / 3)
    assert kept(run) == [], "no answer is correct by its verdict"
    begin(run, 0, "credit", PARTS)
    found = regrade(run, 0, version="credit")
    assert (found.old_rewards, found.new_rewards) == ([0.0] * 4, [third, 0.0, 0.0, third])
    assert content(run) == before and run.verdicts(0) == run.verdicts(0, "")
    assert kept(run) == [], "the version is there, and not used"
    use(run, 0, "credit")
    assert run.verdicts(0).name == "2_verdicts.credit" and run.judged_by(0).reward is not None
    assert kept(run) == [third, 0.0, 0.0, third]
    entry = run.ledger.artifacts()[run.name(run.groups(0))]
    part = "round_00/2_verdicts.credit/part-00000.parquet"
    made = run.ledger.artifacts()[part]
    assert part in entry.inputs and made.config["reward"]["right_from"] == 0.3
    use(run, 0, "")
    assert kept(run) == [] and content(run) == before
    assert Run.open(run.root).config.reward is None, "the run's own settings stay"


def test_a_version_goes_on_where_it_was_killed_and_has_one_setting(tmp_path: Path) -> None:
    run = judged(tmp_path)
    begin(run, 0, "credit", PARTS)
    with pytest.raises(DataError, match="has no verdicts on part-00000"):
        use(run, 0, "credit")
    regrade(run, 0, version="credit")
    part = run.verdicts(0, "credit") / "part-00000.parquet"
    made = part.stat().st_mtime_ns
    begin(run, 0, "credit", PARTS)
    regrade(run, 0, version="credit")
    assert part.stat().st_mtime_ns == made, "what is done is not judged again"
    with pytest.raises(ConfigError, match=r"other settings \(reward.right_from was 0.3, now 0.5"):
        begin(run, 0, "credit", PARTS | {"reward": {"parts": {"tests": 1.0}, "right_from": 0.5}})
    with pytest.raises(ConfigError, match="cannot name a version"):
        begin(run, 0, "../x", PARTS)


def test_the_command_makes_and_chooses_versions(tmp_path: Path) -> None:
    run = judged(tmp_path)
    settings = tmp_path / "credit.toml"
    settings.write_text(
        "[verifier]\nstop_at_first_failure = false\n[reward]\nright_from = 0.3\nparts = {tests = 1.0}\n"
    )
    told = ["verify", "--rollouts", str(run.rollouts(0))]
    made = CliRunner().invoke(app, [*told, "--as", "credit", "--reward", str(settings), "--use", "credit"])
    assert made.exit_code == 0, made.output
    assert "mean reward 0.0000 stored, 0.1667 now" in made.output
    assert "round 0 uses round_00/2_verdicts.credit/" in made.output
    assert run.judged_by(0).verifier.workers == 2, "what the file leaves out is the run's"
    back = CliRunner().invoke(app, [*told, "--use", "stored"])
    assert back.exit_code == 0 and "round 0 uses round_00/2_verdicts/" in back.output
