"""Retries, time limits and tags of each stage, in one table.

A retry is cheap because a stage continues where it stopped: the ledger, not Prefect, knows what is finished. Errors
that a person must mend (ConfigError, DataError) are never retried, nor is what was asked to stop (Interrupted).
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class StageSettings:
    """How Prefect treats one stage."""

    retries: int = 1
    """How often a failed process is started again."""
    retry_delay_s: float = 5.0
    """Pause before that."""
    timeout_s: float | None = None
    """The guard ends the whole process tree after this many seconds."""
    tags: tuple[str, ...] = ()
    """For Prefect's tag concurrency limits: `engine` and `trainer` need the accelerator."""


STAGES = {
    "pretraining.pretrain": StageSettings(tags=("trainer",)),
    "problems.prepare": StageSettings(retries=0),
    "rollouts.generate": StageSettings(retries=2, tags=("engine",)),
    "verdicts.verify": StageSettings(retries=2, tags=("sandbox",)),
    "groups.build": StageSettings(retries=0),
    "training.train": StageSettings(tags=("trainer",)),
    "evaluation.evaluate": StageSettings(retries=2, tags=("engine", "sandbox")),
    "reports.write": StageSettings(retries=0),
}
