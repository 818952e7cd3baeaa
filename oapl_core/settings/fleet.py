"""Which stages of a run other machines do: the settings of the fleet."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import Field

from oapl_core.settings_group import Settings

Pool = Annotated[str, Field(pattern=r"^[^/\s]+(/[^/\s]+)?$")]
"""``POOL`` or ``POOL/QUEUE``."""


class FleetConfig(Settings):
    """Prefect work pools (POOL, or POOL/QUEUE) whose workers do a stage, by stage package; unset: the machine that does
    the round. `make deploy POOLS="..."` tells the server of them. Their machines see the run folder, and a model, under
    the same absolute paths."""

    rollouts: Pool | None = None
    """Sampling."""
    verdicts: Pool | None = None
    """Verification, during sampling and after it."""
    training: Pool | None = None
    """Training; its worker runs on the machine from which DeepSpeed's launcher reaches the others."""
    evaluation: Pool | None = None
    """Measurement of the checkpoints."""

    def pool(self, verb: str) -> str | None:
        """The pool of ``verb``, for example ``rollouts.generate``; None: here."""
        pool: str | None = getattr(self, verb.partition(".")[0], None)
        return pool

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
