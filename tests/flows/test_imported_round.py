"""A run that begins with another run's exported rollouts: killed in its training, it ends with that run's weights."""

from pathlib import Path

import pytest

from oapl_core.model_files.model_folder import policy_hash
from oapl_core.planning.plan import finished, steps
from oapl_core.run_folder.run import Run
from tests.whole_run import kill_when, made_more_than_once, oapl, small_demo

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]


def test_it_ends_with_the_weights_of_the_run_that_sampled(tmp_path: Path) -> None:
    file, *changes = small_demo(tmp_path, train=48)
    words = [file, *(word for word in changes if not word.startswith("rounds.")), "training.save_steps=1"]
    oapl(["run", *words, 'rounds=[{keep = "mixed"}, {problems = 8}]', "name=theirs", "--until", "training"])
    theirs = Run.open(tmp_path / "runs" / "theirs-seed0")
    exported = tmp_path / "round.parquet"
    oapl(["export", str(theirs.root), str(exported)])

    rounds = f'rounds=[{{rows = {{imported = "{exported}"}}, keep = "mixed"}}, {{problems = 8}}]'
    mine = ["run", *words, rounds, "name=mine"]
    state = tmp_path / "runs" / "mine-seed0" / "round_00" / "4_checkpoint" / "oapl" / "state"
    kill_when(mine, tmp_path / "killed.log", lambda: any(state.glob("*/belongs_to.json")))
    run = Run.open(tmp_path / "runs" / "mine-seed0")
    done = [step.word for step in finished(run)]
    assert done == ["base-model", "problems-and-prompts", "import", "verification", "groups"]
    oapl(mine)
    assert len(finished(run)) == len(steps(run.config))
    assert made_more_than_once(run) == []
    assert policy_hash(run.policy(1)) == policy_hash(theirs.policy(1)) != policy_hash(run.base_model())
    # the next round samples with what the imported one has trained
    parts = [entry for name, entry in run.ledger.artifacts().items() if name.startswith("round_01/1_rollouts/")]
    assert {part.details["policy_hash"] for part in parts} == {policy_hash(run.policy(1))}
    assert "imported, encoded here" not in (run.report / "report.md").read_text()
