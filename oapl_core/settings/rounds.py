"""A round's settings, ``[[rounds]]``: where its rows come from, which it trains on, and what it has of its own.

Of its own a round may have keys of four tables of the experiment: sampling, objective, training, reward. They are kept
as they were given, as differences. `Experiment.of_round` puts them in, and every stage of a round asks that.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    PositiveInt,
    TypeAdapter,
    field_validator,
    model_validator,
)

from oapl_core import plugins
from oapl_core.objectives import Method, Objective, OwnObjective
from oapl_core.plugins.own_function import source_hash
from oapl_core.settings.reward import RewardConfig
from oapl_core.settings.rows import SAMPLED, Rows, RowSource
from oapl_core.settings.rows.difficulty import DifficultyConfig
from oapl_core.settings.rows.replay import ReplayConfig
from oapl_core.settings.sampling import SamplingConfig
from oapl_core.settings.training import TrainingConfig
from oapl_core.settings_group import Fraction, Settings

if TYPE_CHECKING:
    from oapl_core.settings.experiment import Experiment

_SAME = (
    *("processes", "launcher", "sequence_parallel", "zero_stage", "dtype", "offload_optimizer", "offload_parameters"),
    *("deepspeed", "optimizer_state", "keep_checkpoints", "trackers"),
)
"""Keys of [training] that are the same in all rounds: machines, what a state's files are, what holds for the run."""
_UNSAMPLED = {"reference": "behavior", "optimizer_state": "fresh"}
"""Settings where nobody sampled the rows: there is nothing to compare with, and a rollouts' optimiser is another's."""
_Own = dict[str, Any]
_OBJECTIVE: TypeAdapter[Method | OwnObjective] = TypeAdapter(Objective)


class OwnTables(BaseModel):
    """Tables of which a round may have keys of its own, whole."""

    sampling: SamplingConfig
    objective: Objective
    training: TrainingConfig
    reward: RewardConfig | None


TABLES = tuple(OwnTables.model_fields)
"""Names of the tables."""
_PLACED = TypeAdapter(dict[str, dict[int, OwnTables]])
"""Tables of each round, in the place that a complaint names."""


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

    decided = dict.fromkeys(
        "model engine sampler environment verifier sync pipeline evaluation seed".split(),
        f"it is the same in all rounds; of {', '.join(TABLES)} a round may have keys of its own",
    )

    rows: Rows = "sampled"
    """Where rows come from. `sampled`: by the newest checkpoint. `{demonstrations = FILE}`: answers to be imitated, so
    that nothing is sampled or judged. `{imported = FILE}`: rollouts of others, filtered as if sampled here."""
    sampling: _Own = Field(default_factory=dict)
    """Keys of [sampling] that are its own, such as `{max_tokens = 16384, group_size = 16}`; the others are as there."""
    objective: _Own = Field(default_factory=dict)
    """Keys of [objective] that are its own, such as `{regression_temperature = 1e-2}`. With a `name` it is another
    loss, whose other keys are its defaults. Unset: the experiment's, of demonstrations `sft`."""
    training: _Own = Field(default_factory=dict)
    """Keys of [training] that are its own, such as `{learning_rate = 5e-5}`; the others are as there. Of demonstrations
    `batch_size` is 128, `learning_rate` 2e-5, `warmup_share` 0.03 and `floor_share` 0 unless given here (RFT's)."""
    reward: _Own = Field(default_factory=dict)
    """Keys of [reward] that are its own, such as `{parts = {length = 1e-4}}`; the others are as there."""
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
    whose rewards differ. `all`: every one. Or `module:function`, a filter of your own (docs/extras/filters.md). Of a
    list, each filter sees what those before it kept."""
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

    @field_validator("objective", mode="before")
    @classmethod
    def _another_loss_is_whole(cls, own: Any) -> Any:
        is_named = isinstance(own, Method | OwnObjective) or (isinstance(own, Mapping) and "name" in own)
        return _OBJECTIVE.validate_python(own).model_dump(mode="json") if is_named else {} if own is None else own

    @field_validator("training")
    @classmethod
    def _is_a_rounds_own(cls, own: _Own) -> _Own:
        if foreign := next((key for key in own if key in _SAME), None):
            raise ValueError(f"{foreign} is the same in all rounds: give it in [training]")
        return own

    @model_validator(mode="after")
    def _rows_without_rollouts_are_not_chosen(self) -> Self:
        if self.source.is_sampled:
            return self
        rows_are, has_rollouts, unset = self.source.rows_are, self.source.has_rollouts, type(self)()
        of_rollouts = () if has_rollouts else ("keep", "pass_rate", "truncated", "sampling", "reward")
        sampling = ("problems", "draw", "difficulty", "replay", *of_rollouts)
        if given := next((key for key in sampling if getattr(self, key) != getattr(unset, key)), None):
            raise ValueError(f"{given} is for rows that are sampled, and these are {rows_are}: leave it out")
        if not has_rollouts and "reference" in self.training:
            raise ValueError(f"training.reference compares with what sampled, and nobody sampled {rows_are}")
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
    def has_a_loss(self) -> bool:
        """Whether its loss is another than the experiment's, by name."""
        return "name" in self._given["objective"]

    @property
    def own(self) -> dict[str, Any]:
        """Settings of the four tables that are its own: ``sampling.max_tokens`` to the value."""
        return {key: value for name in TABLES for key, value in _flat(name, getattr(self, name))}

    @property
    def _given(self) -> dict[str, _Own]:
        given: dict[str, _Own] = {name: getattr(self, name) for name in TABLES}
        if self.source.has_rollouts:
            return given
        loss = {"name": self.source.objective} if self.source.objective else {}
        training = {**self.source.training, **given["training"], **_UNSAMPLED}
        return given | {"objective": loss | given["objective"], "training": training}

    def resolved(self, tables: Any, number: int) -> dict[str, Any]:
        """Return those of ``tables``, the experiment's as attributes, of which the round has keys of its own, whole.

        Raises:
            ValidationError: a key or value is wrong; at its place below ``rounds`` and the round's ``number``.
        """
        values = {name: _merged(getattr(tables, name), own) for name, own in self._given.items() if own}
        if not values:
            return {}
        # what is whole already is not looked at again
        every = {name: getattr(tables, name) for name in TABLES} | values
        found = _PLACED.validate_python({"rounds": {number: every}})["rounds"][number]
        return {name: getattr(found, name) for name in values}

    def check(self, key: str, own: "Experiment", earlier: "Iterable[Experiment]") -> None:
        """Hold the round, which has that ``key``, against its ``own`` settings and those of rounds that it reads.

        Raises:
            ValueError: they do not go together; says why.
        """
        self.source.check(f"{key}.rows", own)
        if self.replay:
            self.replay.check(f"{key}.replay", own, earlier)


def _merged(table: Settings | None, own: _Own) -> _Own:
    """Return ``own`` over the table's settings, less options of an objective that ``own`` has as `false` or `[]`;
    another loss has none of the experiment's.
    """
    if table is None or "name" in own:
        return own
    options = [key for key in plugins.names("objective_option") if key in own]
    left_out = [key for key in options if own[key] is None or own[key] is False or own[key] == []]
    return {key: value for key, value in _over(table.model_dump(), own).items() if key not in left_out}


def _over(values: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    inner = {k: _over(values[k], v) for k, v in own.items() if isinstance(v, dict) and isinstance(values.get(k), dict)}
    return {**values, **own, **inner}


def _flat(key: str, value: Any) -> list[tuple[str, Any]]:
    if not isinstance(value, dict):
        return [(key, value)]
    return [pair for name, inner in value.items() for pair in _flat(f"{key}.{name}", inner)]


def rounds_in_words(rounds: Sequence[RoundConfig]) -> list[tuple[str, str]]:
    """Say what rounds have of their own: ``rounds 2-3``, ``sampling.max_tokens = 16384, ...``; equal ones together."""
    lines, number = list[tuple[str, str]](), 0
    for own, equal in groupby(rounds, key=lambda one: one.own):
        first, number = number, number + len(list(equal))
        if own:
            label = f"round {first}" if number == first + 1 else f"rounds {first}-{number - 1}"
            lines.append((label, ", ".join(f"{key} = {value}" for key, value in own.items())))
    return lines
