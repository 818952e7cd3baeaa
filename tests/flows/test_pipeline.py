"""With `pipeline` the next round is sampled while one trains; killed or not, each stage is done once."""

from pathlib import Path

import pytest

from oapl_core.planning.plan import finished, steps
from oapl_core.run_folder.run import Run
from tests.played_run import left_behind, played_experiment, stages_started

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("prefect")]


def test_the_next_round_is_sampled_beside_training(tmp_path: Path) -> None:
    from flows.experiment import oapl_experiment

    experiment, root = played_experiment(tmp_path, rounds=3), tmp_path / "played-seed0"
    root.mkdir()
    (root / "pause").write_text("0.1")
    oapl_experiment(experiment, ("pipeline={}",))
    run, started = Run.open(root), stages_started(root)
    assert len(finished(run)) == len(steps(run.config))
    assert sorted(started) == sorted(step.label for step in steps(run.config)), "each stage was started once"
    for number in (0, 1):
        training, ahead = f"training.train round {number}", f"rollouts.generate round {number + 1}"
        assert abs(started.index(training) - started.index(ahead)) == 1
        assert started.index(ahead) < started.index(f"verdicts.verify round {number + 1}")
    assert left_behind(root) == []


def test_sampling_ahead_that_fails_is_done_by_its_own_step(tmp_path: Path) -> None:
    from flows.experiment import oapl_experiment

    experiment, root = played_experiment(tmp_path, rounds=2), tmp_path / "played-seed0"
    player = (tmp_path / "player.py").read_text()
    marker = "step = next("
    once = (
        "broken = run.root / 'broke'\n"
        "if verb == 'rollouts.generate' and number == 1 and not broken.exists():\n"
        "    broken.touch()\n    child.kill()\n    sys.exit(1)\n"
    )
    (tmp_path / "player.py").write_text(player.replace(marker, once + marker, 1))
    oapl_experiment(experiment, ("pipeline={}",))
    run = Run.open(root)
    assert (root / "broke").exists()
    assert len(finished(run)) == len(steps(run.config))
    ends = [entry.exit_code for entry in run.ledger.stages() if entry.stage == "rollouts.generate round 1"]
    assert ends == [1, 0]
