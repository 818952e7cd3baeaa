"""What watches a round: event files, missing packages, resumed rounds."""

from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from oapl_core.errors import ConfigError
from oapl_core.training.tracking import Tracking


def curves(run: Path) -> EventAccumulator:
    found = EventAccumulator(str(run / "logs" / "tensorboard" / "round_00_oapl"))
    found.Reload()
    return found


def test_every_number_of_a_step_becomes_a_point_of_a_curve(tmp_path: Path) -> None:
    tracking = Tracking(["tensorboard"], tmp_path, "round_00_oapl", {"seed": 3})
    tracking.log({"step": 1, "loss": 0.5, "clipped": True, "log_ratio_right": None})
    tracking.log({"step": 2, "loss": 0.25, "clipped": False, "log_ratio_right": 1.0})
    tracking.close()
    found = curves(tmp_path)
    assert found.Tags()["scalars"] == ["training/loss", "training/clipped", "training/log_ratio_right"]
    assert [(e.step, e.value) for e in found.Scalars("training/loss")] == [(1, 0.5), (2, 0.25)]
    assert [(e.step, e.value) for e in found.Scalars("training/clipped")] == [(1, 1.0), (2, 0.0)]
    assert [(e.step, e.value) for e in found.Scalars("training/log_ratio_right")] == [(2, 1.0)]


def test_steps_that_are_done_again_after_a_kill_are_shown_once(tmp_path: Path) -> None:
    killed = Tracking(["tensorboard"], tmp_path, "round_00_oapl")
    for step in (1, 2, 3):
        killed.log({"step": step, "loss": 9.0})
    again = Tracking(["tensorboard"], tmp_path, "round_00_oapl")
    for step in (2, 3, 4):
        again.log({"step": step, "loss": 1.0})
    again.close()
    assert [(e.step, e.value) for e in curves(tmp_path).Scalars("training/loss")] == [(1, 9), (2, 1), (3, 1), (4, 1)]


def test_a_missing_package_is_one_clear_line_before_anything_is_opened(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"training.trackers: 'mlflow' needs the package mlflow.*pip install mlflow"):
        Tracking(["tensorboard", "mlflow"], tmp_path, "round_00_oapl")
    assert not (tmp_path / "logs").exists()


def test_without_trackers_nothing_is_written(tmp_path: Path) -> None:
    tracking = Tracking([], tmp_path, "round_00_oapl")
    tracking.log({"step": 1, "loss": 0.5})
    tracking.close()
    assert list(tmp_path.iterdir()) == []
