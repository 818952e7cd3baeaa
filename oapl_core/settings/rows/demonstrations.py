"""Demonstrations as the rows of a round: answers to be imitated, read from files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, PositiveInt

from oapl_core.settings.problems import ProblemFiles
from oapl_core.settings.rows.reading import ReadRows


class DemonstrationsConfig(ReadRows):
    """Answers that nobody sampled here, to be imitated (data/README.md)."""

    rows_are = "demonstrations"
    verb = "problems.demonstrate"
    decided_by = ("sampling.max_tokens", "sampling.stop")
    objective = "sft"
    # RFT's supervised models (arXiv 2308.01825, its train_7b.sh)
    training: ClassVar[Mapping[str, Any]] = {
        "batch_size": 128,
        "learning_rate": 2e-5,
        "warmup_share": 0.03,
        "floor_share": 0.0,
    }
    # of the stage that once was: the same demonstrations are still taken in the same order
    seed_word = "warm start"

    demonstrations: Annotated[ProblemFiles, Field(min_length=1)]
    """A file of a kind that `problems.train` may be, or a list of files. A row has `messages` (OpenAI's chat form;
    every assistant turn is trained on). Or it has a `solution`, and the `problem_id` of a training problem or a
    `statement`. The prompt is made as for sampling."""
    limit: PositiveInt | None = None
    """Take only so many rows of each file, the first ones that can be used; unset: all."""
    max_tokens: PositiveInt | None = None
    """Longest answer, its end included; longer ones are dropped and counted, never cut. Tokens; unset:
    `sampling.max_tokens`, as a longer answer would be cut when it is sampled."""

    @property
    def files(self) -> tuple[Path, ...]:
        """Files that `demonstrations` names."""
        return self.demonstrations

    @property
    def most_of_a_file(self) -> int | None:
        """Number that `limit` says."""
        return self.limit

    @property
    def longest(self) -> int | None:
        """Number that `max_tokens` says."""
        return self.max_tokens

    def rehearsed(self, limit: int, longest: int) -> Self:
        """Return as many rows as problems, with answers as long as without a rehearsal: else none would be left."""
        return self.model_copy(update={"limit": limit, "max_tokens": self.max_tokens or longest})
