"""Settings of the draw of problems by their pass rates so far."""

from typing import Self

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from oapl_core.settings_group import Settings, Share


class DifficultyConfig(Settings):
    """How `draw = "difficulty"` chooses problems by their pass rates so far."""

    window: PositiveInt = 4
    """Rounds before this one whose verdicts count. Rounds."""
    temperature: PositiveFloat = 1.0
    """Problems are drawn in proportion to w^(1/temperature), w the variance of their reward: towards 0 always the ones
    at one half, large ones at random."""
    retire_after: PositiveInt = 2
    """A problem is left out when all of its answers were correct, or all wrong, in so many of its rounds in a row."""
    look_again: PositiveInt = 8
    """After so many rounds it is drawn from again. Rounds."""
    shares: dict[str, Share] = Field(default_factory=dict)
    """Shares of the round's problems, by `source`: `{gsm8k = 0.3, taco = 0.5}`; the rest comes from other sources."""

    @model_validator(mode="after")
    def _shares_fit(self) -> Self:
        if sum(self.shares.values()) > 1.0 + 1e-9:
            raise ValueError(f"shares add up to {sum(self.shares.values()):g}, more than 1")
        return self
