"""Optimiser steps to TensorBoard, Weights & Biases or MLflow while they happen: `training.trackers`.

Writes TensorBoard event files to logs/tensorboard/round_NN_<objective> of the run (`tensorboard --logdir` shows every
round); the other two go where their own environment variables say. A round that is resumed logs on under the same step
numbers. Only the first rank tracks. The file that counts is training_metrics.jsonl.
"""

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oapl_core.errors import ConfigError

if TYPE_CHECKING:
    from oapl_core.training.metrics import Metrics

Log = Callable[[int, dict[str, float]], Any]
"""Takes the number of an optimiser step and its values."""
Tracker = tuple[Log, Callable[[], Any]]
"""How to log a step, and how to write what is left at the end."""


def _tensorboard(folder: Path, name: str, next_step: int, config: Mapping[str, Any]) -> Tracker:
    from torch.utils.tensorboard import SummaryWriter

    # steps that a killed process logged and that are done again disappear
    writer = SummaryWriter(str(folder / name), purge_step=next_step)
    if next_step == 1:
        writer.add_text("settings", "\n".join(f"    {key} = {value}" for key, value in config.items()))

    def log(step: int, values: dict[str, float]) -> None:
        for key, value in values.items():
            writer.add_scalar(f"training/{key}", value, step)
        writer.flush()

    return log, writer.close


def _wandb(folder: Path, name: str, _next_step: int, config: Mapping[str, Any]) -> Tracker:
    import wandb

    # an id of its own, so that a resumed round continues its curves
    identity = "".join(c if c.isalnum() else "-" for c in f"{folder.parents[1].name}-{name}")
    settings = {"name": identity, "id": identity, "resume": "allow", "dir": str(folder.parent), "config": dict(config)}
    run = wandb.init(project="oapl", **settings)
    return lambda step, values: run.log(values, step=step), run.finish


def _mlflow(folder: Path, name: str, _next_step: int, config: Mapping[str, Any]) -> Tracker:
    import mlflow

    mlflow.set_experiment("oapl")
    mlflow.start_run(run_name=f"{folder.parents[1].name} {name}")
    # MLflow refuses longer values
    mlflow.log_params({key: str(value)[:500] for key, value in config.items()})
    return lambda step, values: mlflow.log_metrics(values, step=step), mlflow.end_run


_OPENED_BY = {"tensorboard": _tensorboard, "wandb": _wandb, "mlflow": _mlflow}


def check_trackers(names: Sequence[str]) -> None:
    """Before anything is loaded.

    Raises:
        ConfigError: a tracker's package is not installed.
    """
    for name in names:
        if find_spec(name) is None:
            raise ConfigError(
                f"training.trackers: {name!r} needs the package {name}, which is not installed here; "
                f"`pip install {name}` in the engine's environment, or take it out of the list"
            )


class Tracking:
    """All of a round's trackers; without any it does nothing."""

    def __init__(self, names: Sequence[str], run: Path, name: str, config: Mapping[str, Any] | None = None) -> None:
        """They are opened by the first step, whose number they must know.

        Args:
            names: of `training.trackers`.
            run: the run folder.
            name: of the round and its objective.
            config: settings to show with the curves.

        Raises:
            ConfigError: a tracker's package is not installed.
        """
        check_trackers(names)
        self._names, self._name, self._config = names, name, config or {}
        self._folder = run.absolute() / "logs" / "tensorboard"
        self._trackers: list[Tracker] = []

    def log(self, metrics: "Metrics") -> None:
        """Give a step's metrics to every tracker; what is not known (None) is left out."""
        step = int(metrics["step"])
        if not self._trackers:
            self._trackers = [_OPENED_BY[key](self._folder, self._name, step, self._config) for key in self._names]
        values = {key: float(value) for key, value in metrics.items() if value is not None and key != "step"}
        for log, _ in self._trackers:
            log(step, dict(values))

    def close(self) -> None:
        """Write what is left."""
        for _, close in self._trackers:
            close()
