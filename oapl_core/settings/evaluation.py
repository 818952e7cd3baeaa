"""How checkpoints are measured: the settings of evaluation, with their defaults, units and sources."""

from typing import Annotated, Literal, Self

from pydantic import Field, PositiveInt, model_validator

from oapl_core.settings_group import Settings

StopTexts = tuple[Annotated[str, Field(min_length=1)], ...]
"""Texts that end an answer as soon as they are sampled."""
OF_ALL_ROUNDS = "validation_of_all_rounds"
"""Value of `choose_on` by which an earlier round's checkpoint may be chosen."""


class DecodingConfig(Settings):
    """Distribution that answers are sampled from."""

    temperature: Annotated[float, Field(ge=0.0)] = 0.6
    """Sampling temperature."""
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] = 0.95
    """Mass of nucleus sampling."""

    @property
    def decoding(self) -> str:
        """Words for it in tables."""
        return f"T {self.temperature:g}, top-p {self.top_p:g}" if self.temperature else "greedy"

    @property
    def ending(self) -> str:
        """End of the name of a folder with such answers, where they are no checkpoint's first ones."""
        return "." + self.decoding.replace(", ", " ").replace(" ", "-")


class AskingConfig(DecodingConfig):
    """How checkpoints are asked and what is made of their answers, in a run and by `oapl evaluate`."""

    also: tuple[DecodingConfig, ...] = ()
    """Other temperatures and top-p at which reported problems are answered, too. Example:
    `[{temperature = 1.0, top_p = 1.0}, {temperature = 0}]`. At temperature 0 each problem is asked once."""
    max_tokens: PositiveInt = 65536
    """Longest response. Tokens."""
    stop: StopTexts | None = None
    """Texts that end an answer; unset: in a run those of `sampling.stop`, else none."""
    bootstrap_resamples: PositiveInt = 2000
    """Resamples of the problems for the intervals."""

    @model_validator(mode="after")
    def _each_decoding_once(self) -> Self:
        named = [self.decoding, *(one.decoding for one in self.also)]
        if twice := next((name for name in named if named.count(name) > 1), None):
            raise ValueError(f"also: {twice} is given twice, or is what everything is asked with anyway; leave it out")
        return self


class EvaluationConfig(AskingConfig):
    """How a run's checkpoints are measured."""

    validation_samples: PositiveInt = 8
    """Answers per validation problem, for choosing the epoch."""
    heldout_samples: PositiveInt = 16
    """n of the unbiased pass@k on held-out problems."""
    choose_on: Literal["validation", "validation_of_all_rounds", "heldout", "last"] = "validation"
    """Problems that choose which of the last round's epochs is measured. `validation`: the highest mean reward on them
    (without any, the last epoch). `validation_of_all_rounds`: the same among all that `every_rounds` measured, too.
    `last`: always the last epoch. `heldout` would choose on the problems that are reported. It needs `force`, and the
    choice is then named wherever the epoch is."""
    force: bool = False
    """Choose on held-out problems all the same."""
    every_rounds: PositiveInt | Literal["epoch"] | None = None
    """Measure the newest checkpoint after every so many rounds, too; unset: at the end of the run alone. `epoch`: each
    epoch of a round, when its training has ended. The end uses these answers again and measures the same."""
    heldout_problems: PositiveInt | None = None
    """Held-out problems that are asked after a round, in whole parts of at most 256 answers, so perhaps some more. They
    are spread over all of them, and the same in every round; unset: all."""

    @property
    def is_during(self) -> bool:
        """Whether a setting asks for evaluations before the end of the run, or for what they measured."""
        return bool(self.every_rounds or self.heldout_problems or self.choose_on == OF_ALL_ROUNDS)

    def before_the_end(self, rounds: int) -> tuple[int, ...]:
        """Return those of so many rounds after which a checkpoint is measured, but the last."""
        every = 1 if self.every_rounds == "epoch" else self.every_rounds
        return tuple(range(every - 1, rounds - 1, every)) if every else ()

    @model_validator(mode="after")
    def _not_on_what_is_reported(self) -> Self:
        # refused, not warned of: a run takes days, and nobody reads its first lines again
        if self.choose_on == "heldout" and not self.force:
            raise ValueError(
                "choose_on = 'heldout' would choose the epoch on the very problems that are reported, which makes it "
                "look better than it is; give validation problems, or choose_on = 'last', or force = true to do it "
                "all the same and have it named in every result"
            )
        return self
