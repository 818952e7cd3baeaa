"""Demonstrations among the rows of each group, ``rows = {with_demonstrations = FILE}`` (LUFFY, arXiv 2504.14945).

The last answers of a group are not sampled but taken from a file, in the file's order. They are rows like the others,
judged, filtered and trained on in their group. A row says that it is one: its engine is `demonstration FILE`, and it
has no log-probs, no seed and no time. A problem that the file does not answer has sampled rows alone.
"""

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, PositiveInt

from oapl_core.errors import ConfigError
from oapl_core.objectives import Method
from oapl_core.settings.problems import ProblemFiles
from oapl_core.settings.rows import RowSource
from oapl_extras.guidance.exclusions import refuse

if TYPE_CHECKING:
    from pathlib import Path

    from oapl_core.rollouts.requests import Sampler
    from oapl_core.run_folder.run import Run
    from oapl_core.settings.experiment import Experiment


class WithDemonstrations(RowSource):
    """Sampled answers, and demonstrations among the rows of each group (docs/extras/guidance.md)."""

    rows_are = "answers and demonstrations"

    with_demonstrations: Annotated[ProblemFiles, Field(min_length=1)]
    """A file of demonstrations, or a list of files, as for `demonstrations`. Those of problems that the run trains on
    are used."""
    per_group: PositiveInt = 1
    """Demonstrations in a group, at most, of its `sampling.group_size` rows; 1 of 8 in the paper."""

    @property
    def files(self) -> "tuple[Path, ...]":
        """Files that `with_demonstrations` names."""
        return self.with_demonstrations

    @property
    def slice(self) -> dict[str, Any]:
        """Settings that rollouts depend on; the files are inputs of theirs, by their hashes."""
        return {"demonstrations_per_group": self.per_group}

    def check(self, key: str, own: "Experiment") -> None:
        """Refuse a round whose loss, settings or machines cannot do with demonstrations among the rows.

        Raises:
            ValueError: says why.
        """
        if self.per_group >= own.sampling.group_size:
            size = own.sampling.group_size
            raise ValueError(
                f"{key}.per_group = {self.per_group} leaves none of sampling.group_size = {size} to sample"
            )
        loss = own.objective
        if isinstance(loss, Method) and loss.needs_behavior:
            raise ValueError(
                f"{key}: objective {loss.name!r} compares every answer of a group with the policy that sampled it, and "
                "nobody sampled the demonstrations: take 'luffy', 'rft' or 'sft'"
            )
        if any(own.groups_before(number) for number in range(len(own.rounds))):
            raise ValueError(f"{key} and rounds.replay exclude each other: demonstrations have no log-probs")
        refuse(key, own, {"sampling.stop_tokens = 'cut'": own.sampling.stop_tokens == "cut"})

    def around(self, run: "Run", number: int, sampler: "Sampler") -> "Sampler":
        """Return a sampler that answers the last requests of each group with demonstrations.

        Raises:
            ConfigError: the round's own objective compares with what sampled.
            DataError: a row of the files cannot be used (one line with its place).
        """
        from oapl_extras.guidance.demonstrated import Demonstrated, demonstrated_answers

        config = run.config.of_round(number)
        loss = config.objective
        # a person's own objective is asked here: settings are read without importing it
        if not isinstance(loss, Method) and loss.loaded(config.training.reference).needs_behavior:
            raise ConfigError(
                f"rounds.{number}.rows: objective {loss.name!r} compares every answer with the policy that sampled it, "
                "and nobody sampled the demonstrations: say needs_behavior = False in the class, or take 'luffy'"
            )
        own = config.sampling.group_size - self.per_group
        return Demonstrated(sampler, demonstrated_answers(run, number, self.files), own)
