"""Settings of a comparison file, which `oapl compare` sets side by side, with defaults and units."""

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, PositiveInt, model_validator

from oapl_core.objectives import Oapl, Objective
from oapl_core.settings.rehearsal import DURING
from oapl_core.settings.rounds import Keep
from oapl_core.settings_group import Settings

Seed = Annotated[int, Field(ge=0, lt=2**31)]


class ArmConfig(Settings):
    """One way to train on the common rollouts. What it leaves unset is as in the file's tables, then as in the run."""

    label: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._,+=@*()-]*$")]
    """Name in tables and figures; it also names the folders of its runs."""
    objective: Objective = Oapl()
    """Loss: `name` and its own settings; nothing of the run's objective is taken over."""
    training: dict[str, Any] = Field(default_factory=dict)
    """Keys of [training] that differ."""
    keep: Keep | None = None
    """Groups trained on, if not those of the run: then they are made again, from the same rollouts."""
    truncated: Literal["keep", "drop"] | None = None
    """Likewise, what becomes of answers that were cut."""
    epochs: PositiveInt | None = None
    """Passes over the kept rollouts."""

    @property
    def folder(self) -> str:
        """The label as the beginning of a folder's name."""
        # what a shell and a URL take as it is
        words = "".join(c if c.isalnum() or c in "._+=" else " " for c in self.label.lower()).split()
        return "-".join(words).replace("+", "plus").replace("=", "")


class ComparisonConfig(Settings):
    """Arms that train from one checkpoint on one groups file, each with every seed."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    """Names the folder: compare/NAME below the run's `runs_dir`."""
    experiment: Path | None = None
    """Experiment file whose run gives the rollouts; what they need is run first. A relative path starts at this file's
    folder. Or give `run`."""
    overrides: tuple[str, ...] = ()
    """KEY=VALUE settings in which that run differs from `experiment`."""
    run: Path | None = None
    """Run folder that has them already."""
    round: Annotated[int, Field(ge=0)] = 0
    """Round whose rollouts are used, counted from 0; arms start from the checkpoint that this round starts from."""
    seeds: Annotated[tuple[Seed, ...], Field(min_length=1)] = (0, 1, 2)
    """Seeds of the arms: training order, adapters and the sampling of evaluation answers; never of the rollouts."""
    training: dict[str, Any] = Field(default_factory=dict)
    """Keys of [training] in which all arms differ from the run."""
    evaluation: dict[str, Any] = Field(default_factory=dict)
    """Keys of [evaluation] in which all arms differ from the run."""
    epochs: PositiveInt | None = None
    """Passes over the kept rollouts, the same for all arms; unset: the round's."""
    arms: Annotated[tuple[ArmConfig, ...], Field(min_length=1)]
    """The others are compared with the first."""

    @model_validator(mode="after")
    def _unambiguous(self) -> Self:
        if (self.experiment is None) == (self.run is None):
            raise ValueError("give exactly one of `experiment` (a file) and `run` (a run folder)")
        if self.run and self.overrides:
            raise ValueError("a run keeps its settings: `overrides` go with `experiment`")
        # by folder, not by label: "GRPO" and "grpo" are one folder
        folders = [arm.folder for arm in self.arms]
        twice = next((arm.label for arm in self.arms if folders.count(arm.folder) > 1), None)
        if twice is not None:
            raise ValueError(f"two arms are called {twice!r}, or so alike that their folders would have one name")
        if during := sorted(DURING.keys() & self.evaluation.keys()):
            raise ValueError(f"evaluation.{during[0]}: arms are measured at their end alone; leave it out")
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError("a seed is given twice")
        return self
