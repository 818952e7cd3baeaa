"""Where a round's rows come from and how it trains on them: the settings of ``[[rounds]]``, with units and sources."""

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, PositiveInt, field_validator, model_validator

from oapl_core import plugins
from oapl_core.objectives import Method, Objective, OwnObjective
from oapl_core.plugins.own_function import source_hash
from oapl_core.settings.rows import SAMPLED, Rows, RowSource
from oapl_core.settings.rows.difficulty import DifficultyConfig
from oapl_core.settings.rows.replay import ReplayConfig
from oapl_core.settings.training import TrainingConfig
from oapl_core.settings_group import Fraction, Settings

_OWN = (
    *("batch_size", "learning_rate", "warmup_share", "floor_share", "adam_betas", "adam_eps", "weight_decay"),
    *("max_grad_norm", "reference"),
)
"""Keys of [training] that a round may have of its own: how a step is taken, not on which machines."""
_UNSAMPLED = {"reference": "behavior", "optimizer_state": "fresh"}
"""Settings where nobody sampled the rows: there is nothing to compare with, and an optimiser of rollouts is another's.
"""


def _filters(names: Any) -> Any:
    several = names if isinstance(names, list | tuple) else [names]
    if not several or not all(isinstance(name, str) for name in several):
        raise ValueError("write the name of a filter, or a list of names")
    for name in several:
        plugins.known("filter")(name)
    return names


Keep = Annotated[str | tuple[str, ...], BeforeValidator(_filters)]
"""Name of a filter, or of several."""


class RoundConfig(Settings):
    """One turn of the loop: rows, sampled and verified and filtered or read from files, and training on them."""

    rows: Rows = "sampled"
    """Where rows come from: `sampled`, by the newest checkpoint; `{demonstrations = FILE}`, read from files, so that
    the round has no sampling and no verification."""
    objective: Objective | None = None
    """A loss of its own: `name` and its settings; unset: the experiment's, of demonstrations `sft`."""
    training: dict[str, Any] = Field(default_factory=dict)
    """Keys of [training] that are its own, such as `{learning_rate = 5e-5}`; the others are as there. Of demonstrations
    `batch_size` is 128, `learning_rate` 2e-5, `warmup_share` 0.03 and `floor_share` 0 unless given here (RFT's)."""
    problems: PositiveInt | None = None
    """How many of the training problems; unset: all of them."""
    draw: Annotated[str, AfterValidator(plugins.known("draw"))] = "random"
    """Choice of the problems. `random`: a subset independent of other rounds (paper, appendix A). `walk`: the next ones
    of the shuffled training problems, in an order that such rounds share; none comes again before all have come.
    `difficulty`: those whose answers were neither all right nor all wrong in earlier rounds come more often. Or
    `module:function`, a draw of your own."""
    difficulty: DifficultyConfig = DifficultyConfig()
    """Settings of `draw = "difficulty"`."""
    keep: Keep = "any_correct"
    """Groups trained on. `any_correct`: with at least one correct answer. `mixed`: with right and wrong ones. `spread`:
    whose rewards differ. `all`: every one. Or `module:function`, a filter of your own (docs/filters.md). Of a list,
    each filter sees what those before it kept."""
    pass_rate: tuple[Fraction, Fraction] | None = None
    """Band `[low, high]`: groups whose share of correct answers lies outside are left out before `keep` is asked.
    Unset: no band."""
    truncated: Literal["keep", "drop"] = "keep"
    """Answers that were cut at `sampling.max_tokens`. `keep` trains on them with the reward they got, 0 without an
    answer. `drop` leaves them out of their groups, as if they had not been sampled."""
    replay: ReplayConfig | None = None
    """Train on groups of earlier rounds too: `{rounds = 2, share = 0.3}`; unset: on this round's alone."""
    epochs: PositiveInt = 1
    """Passes over the rows, each saved as a checkpoint."""
    repeat: PositiveInt = 1
    """How many such rounds, one after the other. Each is a round of its own wherever rounds are counted."""

    @model_validator(mode="after")
    def _draws_some(self) -> Self:
        if self.draw == "difficulty" and self.problems is None:
            raise ValueError("draw = 'difficulty' wants `problems`, how many to draw; unset, all of them are sampled")
        return self

    @field_validator("pass_rate")
    @classmethod
    def _is_a_band(cls, band: tuple[float, float] | None) -> tuple[float, float] | None:
        if band and band[0] > band[1]:
            raise ValueError(f"the band is [lowest, highest]: write [{band[1]:g}, {band[0]:g}]")
        return band

    @field_validator("training")
    @classmethod
    def _is_a_rounds_own(cls, own: dict[str, Any]) -> dict[str, Any]:
        TrainingConfig.model_validate(own)  # names a key or value that there is not
        foreign = next((key for key in own if key not in _OWN), None)
        if foreign:
            raise ValueError(
                f"{foreign} is the same in all rounds: give it in [training]; a round has {', '.join(_OWN)}"
            )
        return own

    @model_validator(mode="after")
    def _rows_without_rollouts_are_not_chosen(self) -> Self:
        if self.source.is_sampled:
            return self
        rows_are = self.source.rows_are
        sampling = ("problems", "draw", "difficulty", "keep", "pass_rate", "truncated", "replay")
        given = next((key for key in sampling if getattr(self, key) != type(self).model_fields[key].default), None)
        if given:
            raise ValueError(f"{given} chooses among rollouts, and the rows are {rows_are}: leave it out")
        if "reference" in self.training:
            raise ValueError(f"training.reference compares with what sampled, and nobody sampled {rows_are}")
        if isinstance(self.objective, Method) and self.objective.needs_behavior:
            raise ValueError(
                f"objective {self.objective.name!r} compares with the policy that sampled, and nobody sampled "
                f"{rows_are}: leave it out, which trains with {self.source.objective!r}"
            )
        return self

    @property
    def source(self) -> RowSource:
        """Source of the rows."""
        return self.rows if isinstance(self.rows, RowSource) else SAMPLED

    @property
    def filters(self) -> tuple[str, ...]:
        """Names of the filters, in the order in which they are asked."""
        return (self.keep,) if isinstance(self.keep, str) else self.keep

    @property
    def own_filters(self) -> tuple[str, ...]:
        """Places, ``module:function``, of the filters that do not ship."""
        own = (name for name in self.filters if name not in plugins.BUILT_IN["filter"])
        return tuple(plugins.place("filter", name) for name in own)

    @property
    def choice(self) -> dict[str, Any]:
        """Settings that the kept rows depend on, recorded with the groups: an edited filter is another one."""
        dumped = self.model_dump(mode="json", include={"keep", "truncated"})
        dumped |= {"pass_rate": list(self.pass_rate)} if self.pass_rate else {}
        # of a band or a function that is not used nothing is recorded: groups of other runs stay as they were
        sources = {place: source_hash(place) for place in self.own_filters}
        return dumped | ({"filters_sha256": sources} if sources else {})

    @property
    def rounds_before(self) -> int:
        """Number of rounds before this one whose groups are read for its own."""
        return self.replay.rounds if self.replay else 0

    @property
    def own_share(self) -> float:
        """Share of this round's own rollouts in what is trained on."""
        return 1.0 - self.replay.share if self.replay else 1.0

    @property
    def own_objective(self) -> Method | OwnObjective | None:
        """Loss of this round, if it is not the experiment's."""
        name = self.source.objective
        return self.objective or (plugins.resolve("objective", name)() if name else None)

    def check(self, key: str, training: TrainingConfig) -> None:
        """Hold the round, which has that ``key``, against the settings that it trains by.

        Raises:
            ValueError: they do not go together; says why.
        """
        if self.replay:
            self.replay.check(f"{key}.replay", training.reference)

    def trained_by(self, training: TrainingConfig) -> TrainingConfig:
        """Return ``training``, the experiment's, with what is this round's own."""
        own = {**self.source.training, **self.training, **({} if self.source.is_sampled else _UNSAMPLED)}
        return TrainingConfig.model_validate(training.model_dump() | own) if own else training
