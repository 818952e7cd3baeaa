"""Sources of a round's rows: what makes its groups file, and what training may count on. One file for each.

Plan, stages, run and training ask the source of a round. A new one is a class with the key that names it, and that name
in the table of ``plugins``. Only the one that is chosen is imported.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import SerializeAsAny, ValidatorFunctionWrapHandler, WithJsonSchema, WrapValidator

from oapl_core import plugins
from oapl_core.settings_group import Settings

if TYPE_CHECKING:
    from oapl_core.settings.experiment import Experiment


class RowSource(Settings):
    """A table of settings whose first key is the name of the source; by itself, rows that a policy of the run samples.

    What is sampled has rollouts, verdicts and log-probs. Any other source has a process of its own. It leaves rollouts
    of others, or the groups file and nothing to compare with. Sources with limits of their own: ``reading.py``.
    """

    rows_are: ClassVar[str] = "rollouts"
    """Word for the rows, for people."""
    verb: ClassVar[str | None] = None
    """Process that leaves the rows; None: sampling, verification and filter do."""
    makes_rollouts: ClassVar[bool] = False
    """Whether that process leaves rollouts, which are judged and filtered as sampled ones; else it leaves groups."""
    word: ClassVar[str | None] = None
    """Name that a person gives that process; None: of the stage whose place it takes."""
    room: ClassVar[str] = ""
    """Name of what estimates its process's room on the disk, of the kind `room`; empty: little."""
    decided_by: ClassVar[tuple[str, ...]] = ()
    """Settings that the rows depend on; a fork that shares them must have the same."""
    objective: ClassVar[str | None] = None
    """Loss of a round that names none; None: the experiment's."""
    training: ClassVar[Mapping[str, Any]] = {}
    """Defaults of a round's own keys of [training]."""
    seed_word: ClassVar[str | None] = None
    """Word from which the order of training is seeded beside the run's seed; it outlives a renaming of the source."""

    @property
    def is_sampled(self) -> bool:
        """Whether a policy of the run sampled the rows."""
        return self.verb is None

    @property
    def has_rollouts(self) -> bool:
        """Whether there are rollouts to filter, and log-probs to compare with."""
        return self.verb is None or self.makes_rollouts

    @property
    def has_rewards(self) -> bool:
        """Whether that process leaves verdicts, too, made of rewards that the rows have; else answers are judged."""
        return False

    @property
    def files(self) -> tuple[Path, ...]:
        """Files of a person that the rows are read from."""
        return ()

    def reads(self, run: Any, number: int) -> tuple[Path, ...]:
        """Return the files, and artifacts of a Run, that the sampled rows of round ``number`` depend on."""
        return self.files

    def check(self, key: str, own: "Experiment") -> None:
        """Refuse a round that cannot have such rows: ``own`` are its settings, ``key`` that of the rows.

        Raises:
            ValueError: says why.
        """

    def around(self, run: Any, number: int, sampler: Any) -> Any:
        """Return the Sampler of round ``number`` of a Run: ``sampler``, or one around it."""
        return sampler


SAMPLED = RowSource()
"""Source of a round without another."""


def sources() -> tuple[type[RowSource], ...]:
    """Import every source that has a name."""
    return tuple(plugins.resolve("rows", name) for name in plugins.names("rows"))


def _chosen(value: Any, _builtin: ValidatorFunctionWrapHandler) -> Any:
    if value == "sampled" or isinstance(value, RowSource):
        return value
    named = next((name for name in plugins.names("rows") if isinstance(value, dict) and name in value), None)
    if named is None:
        tables = " or ".join(f"{{{name} = FILE}}" for name in plugins.names("rows"))
        raise ValueError(f'write "sampled", or a table {tables}')
    return plugins.resolve("rows", named).model_validate(value)


# as for objectives, the page of settings lists each source itself
_SCHEMA: dict[str, Any] = {"discriminator": {}}

if TYPE_CHECKING:
    Rows = Literal["sampled"] | RowSource
else:
    Rows = Annotated[Literal["sampled"] | SerializeAsAny[RowSource], WrapValidator(_chosen), WithJsonSchema(_SCHEMA)]
"""The key `rows` of a round: `sampled`, or the table of a source."""
