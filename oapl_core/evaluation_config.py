"""How checkpoints are measured: the settings of evaluation, with their defaults, units and sources."""

from typing import Annotated

from pydantic import Field, PositiveInt

from oapl_core.settings import Settings


class EvaluationConfig(Settings):
    """How checkpoints are measured."""

    validation_samples: PositiveInt = 8
    """Answers per validation problem, for choosing the epoch."""
    heldout_samples: PositiveInt = 16
    """n of the unbiased pass@k on held-out problems."""
    temperature: Annotated[float, Field(ge=0.0)] = 0.6
    """Sampling temperature."""
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] = 0.95
    """Nucleus sampling."""
    max_tokens: PositiveInt = 65536
    """Longest response. Tokens."""
    bootstrap_resamples: PositiveInt = 2000
    """Resamples of the problems for the intervals."""
