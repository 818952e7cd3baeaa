"""Which stages of a run other machines do: the settings of the fleet."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, PositiveInt, model_validator

from oapl_core.settings_group import Settings

Pool = Annotated[str, Field(pattern=r"^[^/\s]+(/[^/\s]+)?$")]
"""``POOL`` or ``POOL/QUEUE``."""


class PoolShares(Settings):
    """A pool whose workers share the parts of a stage; `rollouts = "gpu"` is one share."""

    pool: Pool
    """Whose workers."""
    shares: PositiveInt = 1
    """Flow runs that do it together, one on each machine (a worker with `--limit 1` takes one at a time). Those beside
    the first are replaced twice if they fail, and the stage ends without them if they do not come."""

    @model_validator(mode="before")
    @classmethod
    def _pool_alone(cls, value: Any) -> Any:
        return {"pool": value} if isinstance(value, str) else value


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

    def pool(self, verb: str) -> str | None:
        """The pool of ``verb``, for example ``rollouts.generate``; None: here."""
        found: PoolShares | str | None = getattr(self, verb.partition(".")[0], None)
        return found.pool if isinstance(found, PoolShares) else found

    def shares(self, verb: str) -> int:
        """On how many machines ``verb`` is done at the same time."""
        found = getattr(self, verb.partition(".")[0], None)
        return found.shares if isinstance(found, PoolShares) else 1

    def check(self, on_ray: bool, paths: Mapping[str, Path | None]) -> None:
        """What must hold where a stage runs elsewhere; ``paths`` by the names of their settings.

        Raises:
            ValueError: verification has two places, or a path begins at a folder that only this machine has.
        """
        if not any(self.model_dump().values()):
            return
        if self.verdicts and on_ray:
            raise ValueError("fleet.verdicts and [verifier.ray] both say where to verify; leave one out")
        relative = [name for name, path in paths.items() if path and not path.is_absolute()]
        if relative:
            raise ValueError(f"[fleet] needs absolute paths, the same on every machine; not so: {', '.join(relative)}")
