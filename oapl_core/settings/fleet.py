"""Which stages of a run other machines do: the settings of the fleet."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, PositiveInt, model_validator

from oapl_core.settings_group import Settings

Pool = Annotated[str, Field(pattern=r"^[^/\s]+(/[^/\s]+)?$")]
"""``POOL`` or ``POOL/QUEUE``."""


class PoolShares(Settings):
    """A pool whose workers share the parts of a stage; `rollouts = "gpu"` is one share."""

    pool: Pool | None = None
    """Whose workers. Only `through = "mirror"` goes without, for machines that people start."""
    shares: PositiveInt = 1
    """Flow runs that do it together, one on each machine (a worker with `--limit 1` takes one at a time). Those beside
    the first are replaced twice if they fail, and the stage ends without them if they do not come."""
    through: Literal["disk", "mirror"] = "disk"
    """What its machines share: the run folder on a `disk`; or, for `rollouts`, `mirror`: an object store from which
    they take parts of a round (`oapl join`). Then the first share is on the machine of the round."""

    @model_validator(mode="before")
    @classmethod
    def _pool_alone(cls, value: Any) -> Any:
        return {"pool": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _is_reached(self) -> Self:
        if self.pool is None and self.through == "disk":
            raise ValueError('needs a `pool`, or through = "mirror"')
        return self


class FleetConfig(Settings):
    """Prefect work pools (POOL, or POOL/QUEUE) whose workers do a stage, by stage package; unset: the machine that does
    the round. `make deploy POOLS="..."` tells the server of them. Their machines see the run folder, and a model, under
    the same absolute paths."""

    rollouts: PoolShares | None = None
    """Sampling, for example `{pool = "gpu", shares = 4}`."""
    verdicts: Pool | None = None
    """Verification, during sampling and after it."""
    training: Pool | None = None
    """Training; of several nodes (`training.launcher`), its worker is on the first."""
    evaluation: PoolShares | None = None
    """Measurement of the checkpoints, shared as sampling is."""

    @property
    def through_mirror(self) -> bool:
        """Whether machines that do not see the run folder may sample."""
        return self.rollouts is not None and self.rollouts.through == "mirror"

    def pool(self, verb: str) -> str | None:
        """The pool of ``verb``, for example ``rollouts.generate``; None: here."""
        found: PoolShares | str | None = getattr(self, verb.partition(".")[0], None)
        if isinstance(found, PoolShares):
            return None if found.through == "mirror" else found.pool
        return found

    def joining_pool(self, verb: str) -> str | None:
        """The pool whose workers take part in ``verb`` through the mirror."""
        is_sampling = verb.partition(".")[0] == "rollouts"
        return self.rollouts.pool if is_sampling and self.rollouts and self.through_mirror else None

    def shares(self, verb: str) -> int:
        """On how many machines ``verb`` is done at the same time."""
        found = getattr(self, verb.partition(".")[0], None)
        return found.shares if isinstance(found, PoolShares) else 1

    def check(self, on_ray: bool, has_mirror: bool, paths: Mapping[str, Path | None]) -> None:
        """What must hold where a stage runs elsewhere; ``paths`` by the names of their settings.

        Raises:
            ValueError: verification has two places, or a path begins at a folder that only this machine has.
        """
        if self.evaluation and self.evaluation.through == "mirror":
            raise ValueError("fleet.evaluation.through: only rollouts are shared through the mirror")
        if self.through_mirror and not has_mirror:
            raise ValueError("fleet.rollouts.through = 'mirror' needs `mirror`, the URL of an object store")
        if not any(self.model_dump(exclude={"rollouts"} if self.through_mirror else None).values()):
            return
        if self.verdicts and on_ray:
            raise ValueError("fleet.verdicts and [verifier.ray] both say where to verify; leave one out")
        relative = [name for name, path in paths.items() if path and not path.is_absolute()]
        if relative:
            raise ValueError(f"[fleet] needs absolute paths, the same on every machine; not so: {', '.join(relative)}")
