"""When a stage counts as stuck: a limit for each stage package."""

from pydantic import PositiveFloat

from oapl_core.settings_group import Settings


class TimeLimits(Settings):
    """How long one process of a stage may take before its whole tree is ended, by stage package. That counts as a
    failure of the machine: the stage is retried, and resumes from its finished parts. Unset: no limit. Hours."""

    pretraining: PositiveFloat | None = None
    """The demo's base model, or fetching one from the hub."""
    problems: PositiveFloat | None = None
    """Problem sets and prompts."""
    rollouts: PositiveFloat | None = None
    """Sampling of one round."""
    verdicts: PositiveFloat | None = None
    """Verification of one round; during sampling: from the end of sampling."""
    groups: PositiveFloat | None = None
    """Join and filter of one round."""
    training: PositiveFloat | None = None
    """Training of all epochs of one round."""
    evaluation: PositiveFloat | None = None
    """Evaluation of all checkpoints."""
    reports: PositiveFloat | None = None
    """Tables and figures."""

    def seconds(self, verb: str) -> float | None:
        """Return the limit of ``verb``, for example ``rollouts.generate``, in seconds; None: no limit, as of extras."""
        hours: float | None = getattr(self, verb.partition(".")[0], None)
        return None if hours is None else 3600 * hours
