"""Optimiser steps to TensorBoard, Weights & Biases or MLflow while they happen: `training.trackers`.

Writes TensorBoard event files to logs/tensorboard/round_NN_<objective> of the run (`tensorboard --logdir` shows every
round); the other two go where their own environment variables say. A round that goes on after a kill logs on under the
same step numbers. Only the first rank tracks. The file that counts is training_metrics.jsonl.
"""

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from oapl_core.errors import ConfigError

if TYPE_CHECKING:
    from oapl_core.training.metrics import Metrics

_NOT_CURVES = {"step"}


class Tracker(Protocol):
    """What receives the numbers of each step."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Take the values of an optimiser step."""

    def close(self) -> None:
        """Write what is left."""


class _TensorBoard:
    def __init__(self, folder: Path, name: str, next_step: int, config: Mapping[str, Any]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # steps that a killed process logged and that are done again disappear
        self._writer = SummaryWriter(str(folder / name), purge_step=next_step)
        if next_step == 1:
            self._writer.add_text("settings", "\n".join(f"    {key} = {value}" for key, value in config.items()))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for key, value in values.items():
            self._writer.add_scalar(f"training/{key}", value, step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class _WandB:
    def __init__(self, folder: Path, name: str, next_step: int, config: Mapping[str, Any]) -> None:
        import wandb

        identity = "".join(c if c.isalnum() else "-" for c in f"{folder.parents[1].name}-{name}")
        self._run = wandb.init(
            project="oapl", name=identity, id=identity, resume="allow", dir=str(folder.parent), config=dict(config)
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()


class _MLflow:
    def __init__(self, folder: Path, name: str, next_step: int, config: Mapping[str, Any]) -> None:
        import mlflow

        mlflow.set_experiment("oapl")
        self._library = mlflow
        mlflow.start_run(run_name=f"{folder.parents[1].name} {name}")
        mlflow.log_params({key: str(value)[:500] for key, value in config.items()})

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._library.log_metrics(dict(values), step=step)

    def close(self) -> None:
        self._library.end_run()


_MADE_BY: dict[str, Callable[[Path, str, int, Mapping[str, Any]], Tracker]] = {
    "tensorboard": _TensorBoard,
    "wandb": _WandB,
    "mlflow": _MLflow,
}


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
        """They are opened by the first step.

        Args:
            names: of `training.trackers`.
            run: the run folder.
            name: of the round and its objective.
            config: settings to show beside the curves.

        Raises:
            ConfigError: a tracker's package is not installed.
        """
        check_trackers(names)
        self._names, self._name, self._config = names, name, config or {}
        self._folder = run.absolute() / "logs" / "tensorboard"
        self._trackers: list[Tracker] = []

    def log(self, metrics: "Metrics") -> None:
        """Give a step's metrics to every tracker; what is not known (None) is left out."""
        if not self._trackers:
            arguments = (self._folder, self._name, metrics["step"], self._config)
            self._trackers = [_MADE_BY[key](*arguments) for key in self._names]
        values = {k: float(v) for k, v in metrics.items() if v is not None and k not in _NOT_CURVES}
        for tracker in self._trackers:
            tracker.log(metrics["step"], values)

    def close(self) -> None:
        """Write what is left."""
        for tracker in self._trackers:
            tracker.close()
