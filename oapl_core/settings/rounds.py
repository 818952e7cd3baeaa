"""What a round samples and trains on: the settings of ``[[rounds]]``, with units and sources."""

from typing import Annotated, Literal, Self

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from oapl_core.settings_group import Settings

Share = Annotated[float, Field(gt=0.0, lt=1.0)]


class ReplayConfig(Settings):
    """Groups of earlier rounds that are trained on again, with the log-probs of the policies that sampled them."""

    rounds: PositiveInt = 1
    """Of so many rounds before this one. Rounds."""
    share: Share = 0.3
    """How many of the rollouts that are trained on come from there, where there are as many. Whole groups, drawn at
    random."""


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
    """Of the round's problems, by `source`: `{gsm8k = 0.3, taco = 0.5}`; the rest comes from the other sources."""

    @model_validator(mode="after")
    def _shares_fit(self) -> Self:
        if sum(self.shares.values()) > 1.0 + 1e-9:
            raise ValueError(f"shares add up to {sum(self.shares.values()):g}, more than 1")
        return self


class RoundConfig(Settings):
    """One turn of the loop: sample, verify, filter, train."""

    problems: PositiveInt | None = None
    """How many of the training problems; unset: all of them."""
    draw: Literal["random", "walk", "difficulty"] = "random"
    """Which ones: `random`, a subset independent of other rounds (paper, appendix A); `walk`, the next ones of a walk
    through the shuffled training problems, which all such rounds share: none comes again before all have come;
    `difficulty`, those whose answers were neither all right nor all wrong in earlier rounds come more often."""
    difficulty: DifficultyConfig = DifficultyConfig()
    """Of `draw = "difficulty"`."""
    keep: Literal["any_correct", "mixed", "all"] = "any_correct"
    """Groups trained on: with at least one correct answer, with both kinds, or every one."""
    truncated: Literal["keep", "drop"] = "keep"
    """Answers that were cut at `sampling.max_tokens`: `keep` trains on them with the reward they got, 0 without an
    answer; `drop` leaves them out of their groups, as if they had not been sampled."""
    replay: ReplayConfig | None = None
    """Train on groups of earlier rounds too: `{rounds = 2, share = 0.3}`; unset: on this round's alone."""
    epochs: PositiveInt = 1
    """Passes over the kept rollouts, each saved as a checkpoint."""
    repeat: PositiveInt = 1
    """How many such rounds, one after the other. Each is a round of its own wherever rounds are counted."""

    @model_validator(mode="after")
    def _draws_some(self) -> Self:
        if self.draw == "difficulty" and self.problems is None:
            raise ValueError("draw = 'difficulty' wants `problems`, how many to draw; unset, all of them are sampled")
        return self

    def replayed(self, number: int) -> range:
        """The rounds whose groups round ``number``, which is this one, trains on again."""
        return range(max(0, number - self.replay.rounds), number) if self.replay else range(0)
