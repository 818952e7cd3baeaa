"""Which stages run on other machines, on which, and on how many at once: the settings of the fleet."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BeforeValidator, PositiveInt, model_validator

from oapl_core.plugins import known
from oapl_core.settings_group import Settings

FOLDER, MIRROR = "folder", "mirror"
"""Stores that ship, of the kind "store" of ``plugins``: in the run folder, and in its copy."""
_POOL = re.compile(r"[^/\s]+(/[^/\s]+)?")


def _older_word(store: Any) -> Any:
    """Take `disk`, which the folder was called until 0.2, as older runs recorded it."""
    return FOLDER if store == "disk" else store


class Machines(Settings):
    """Machines for a stage; text alone is a work pool of Prefect's: `rollouts = "gpu"` is `{at = "gpu"}`."""

    runner: Annotated[str, AfterValidator(known("runner"))] = "prefect"
    """Who starts processes there: `prefect` (workers of a pool), `ray` (nodes of a cluster), `here`, or `module:Class`,
    one of your own (`oapl_core.runner.Runner`)."""
    at: str | None = None
    """Their address: `POOL` or `POOL/QUEUE` of Prefect; `HOST:PORT` of Ray's head node, or `ray://HOST:PORT` from
    outside of the cluster. Only `through = "mirror"` goes without, for machines that people start."""
    shares: PositiveInt = 1
    """Processes that do it together, one on each machine (a worker with `--limit 1` takes one at a time). Those beside
    the first are replaced twice if they fail, and the stage ends without them if they do not come."""
    through: Annotated[str, BeforeValidator(_older_word), AfterValidator(known("store"))] = FOLDER
    """Where they claim parts: in the run's `folder`, which all see; for `rollouts`, also in the `mirror`, an object
    store (`oapl join`). Then the first share is on the machine of the round. Or `module:Class`, a store of your own
    for machines that see the folder (`oapl_core/run_folder/parts.py: Parts`)."""

    @property
    def has_runner(self) -> bool:
        """Whether processes are started there; without an address a store waits for those that people start."""
        return self.sees_folder or self.at is not None

    @property
    def sees_folder(self) -> bool:
        """Whether its machines see the run folder."""
        return self.through != MIRROR

    @model_validator(mode="after")
    def _is_reached(self) -> Self:
        if self.runner not in ("prefect", "ray"):
            return self
        if self.at is None and self.sees_folder:
            raise ValueError('needs `at`: a work pool or a cluster; or through = "mirror"')
        if self.runner == "prefect" and self.at is not None and not _POOL.fullmatch(self.at):
            raise ValueError(f"at = {self.at!r} is not POOL or POOL/QUEUE")
        return self


def _pool_alone(value: Any) -> Any:
    return {"at": value} if isinstance(value, str) else value


Place = Annotated[Machines | None, BeforeValidator(_pool_alone)]


class FleetConfig(Settings):
    """Machines that do a stage, by stage package; unset: the machine that does the round. They see the run folder, and
    a model, under the same absolute paths. `make deploy POOLS="..."` tells Prefect's server of pools."""

    rollouts: Place = None
    """Sampling, for example `{at = "gpu", shares = 4}`."""
    verdicts: Place = None
    """Verification, during sampling and after it, for example `{runner = "ray", at = "HOST:6379", shares = 4}`."""
    training: Place = None
    """Training; of several nodes (`training.launcher`), its worker is on the first."""
    evaluation: Place = None
    """Measurement of the checkpoints, shared as sampling is."""

    @property
    def through_mirror(self) -> bool:
        """Whether machines that do not see the run folder may sample."""
        return self.rollouts is not None and not self.rollouts.sees_folder

    def machines(self, verb: str) -> Machines | None:
        """Find the machines of ``verb``, for example ``rollouts.generate``; None: it is done here, and alone."""
        found: Machines | None = getattr(self, verb.partition(".")[0], None)
        return found

    def check(self, has_mirror: bool, paths: Mapping[str, Path | None]) -> None:
        """Refuse settings under which a stage could not run elsewhere; ``paths`` by the names of their settings.

        Raises:
            ValueError: a stage has no parts to share, or a path begins at a folder that only this machine has.
        """
        named: dict[str, Machines | None] = {name: getattr(self, name) for name in type(self).model_fields}
        used = {name: one for name, one in named.items() if one}
        for name in [name for name, one in used.items() if name != "rollouts" and not one.sees_folder]:
            raise ValueError(f"fleet.{name}.through: only rollouts are shared through the mirror")
        if self.training and self.training.shares > 1:
            raise ValueError("fleet.training.shares: training has no parts; several nodes are `training.launcher`")
        if self.through_mirror and not has_mirror:
            raise ValueError("fleet.rollouts.through = 'mirror' needs `mirror`, the URL of an object store")
        if not any(one.sees_folder and one.runner != "here" for one in used.values()):
            return
        relative = [name for name, path in paths.items() if path and not path.is_absolute()]
        if relative:
            raise ValueError(f"[fleet] needs absolute paths, the same on every machine; not so: {', '.join(relative)}")
