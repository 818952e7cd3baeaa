"""How a model is trained on demonstrations before round 0: the settings of ``[warm_start]``."""

from typing import Annotated

from pydantic import Field, PositiveFloat, PositiveInt

from oapl_core.settings.problems import ProblemFiles
from oapl_core.settings.training import TrainingConfig
from oapl_core.settings_group import Fraction, Settings

BEFORE_WARM_START = "before warm start"
"""What evaluation calls the model that the warm start began from; `base` is what round 0 starts from."""


class WarmStartConfig(Settings):
    """Token cross-entropy on demonstrations, once, before round 0; all that is not said here is as in ``[training]``.
    Defaults are those of RFT's supervised models (arXiv 2308.01825, its repository's train_7b.sh)."""

    data: Annotated[ProblemFiles, Field(min_length=1)]
    """Demonstrations: a file of a kind that `problems.train` may be, or a list of files. A row has `messages`
    (OpenAI's chat form; every assistant turn is trained on), or a `solution` and the `problem_id` of a training
    problem or a `statement`, from which the prompt is made as for sampling (data/README.md)."""
    limit: PositiveInt | None = None
    """Take only so many rows of each file, the first ones that can be used; unset: all."""
    max_tokens: PositiveInt | None = None
    """Longest answer, its end included; longer ones are dropped and counted, never cut. Tokens; unset:
    `sampling.max_tokens`, as a longer answer would be cut when it is sampled."""
    epochs: PositiveInt = 3
    """Passes over the demonstrations, each saved as a checkpoint; round 0 starts from the last one."""
    batch_size: PositiveInt = 128
    """Sequences per optimiser step over all ranks."""
    learning_rate: PositiveFloat = 2e-5
    """Peak learning rate."""
    warmup_share: Fraction = 0.03
    """Share of the steps that the learning rate rises over."""
    floor_share: Fraction = 0.0
    """Learning rate at the end of the cosine, as a share of the peak."""

    def training(self, rounds: TrainingConfig) -> TrainingConfig:
        """How the warm start trains in a run whose rounds train as ``rounds`` says."""
        own = self.model_dump(include={"batch_size", "learning_rate", "warmup_share", "floor_share"})
        # nothing was sampled, so there is nothing to compare with, and no round before
        return rounds.model_copy(update={**own, "reference": "behavior", "optimizer_state": "fresh"})
