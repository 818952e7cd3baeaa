"""Sources of a round's rows: what makes its groups file, and what training may count on. One file for each.

Plan, stages, run and training ask the source of a round. A new one is a class with the key that names it, and that name
in the table of ``plugins``. Only the one that is chosen is imported.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import SerializeAsAny, ValidatorFunctionWrapHandler, WithJsonSchema, WrapValidator

from oapl_core import plugins
from oapl_core.settings_group import Settings


class RowSource(Settings):
    """A table of settings whose first key is the name of the source; by itself, rows that a policy of the run samples.

    What is sampled has rollouts, verdicts and log-probs. Any other source has a process of its own that leaves the
    groups file, and nothing to compare with.
    """

    rows_are: ClassVar[str] = "rollouts"
    """Word for the rows, for people."""
    verb: ClassVar[str | None] = None
    """Process that leaves the groups file; None: sampling, verification and filter do."""
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
        """Whether a policy sampled the rows, so that there are rollouts, and log-probs to compare with."""
        return self.verb is None

    @property
    def files(self) -> tuple[Path, ...]:
        """Files of a person that the rows are read from."""
        return ()

    @property
    def most_of_a_file(self) -> int | None:
        """Number of rows that are taken of each file; None: all."""
        return None

    @property
    def longest(self) -> int | None:
        """Tokens of the longest answer; None: `sampling.max_tokens`."""
        return None

    def rehearsed(self, limit: int, longest: int) -> Self:
        """Return the source for a rehearsal: ``limit`` rows of a file, answers of at most ``longest`` tokens."""
        return self


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
