"""Rollouts of others as the rows of a round, ``rows = {imported = FILE}``, and what a person says of them."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field, field_validator

from oapl_core.model_files.hub_names import HUB
from oapl_core.settings.rows import RowSource

if TYPE_CHECKING:
    from oapl_core.planning.room import Need
    from oapl_core.run_folder.run import Run

_PINNED = re.compile(r"hub:[\w-][\w.-]*/[\w.-]+@[0-9a-f]{40}(:.+)?")
"""Name of data on the hub at one commit, perhaps of one file."""
_JSON_OF_A_BYTE = 5.0
"""Bytes of temporary file, rollouts and verdicts for each byte of a source, at most. Measured: 4.7 of Parquet with
log-probs, 2.8 of .jsonl.gz, 1.2 of .jsonl (docs/extras/exchange.md)."""


class ImportConfig(RowSource):
    """Rollouts that another project sampled, with their log-probs where it kept them (docs/extras/exchange.md)."""

    rows_are = "imported rollouts"
    verb = "oapl_extras.exchange.import_rollouts"
    makes_rollouts = True
    word = "import"
    room = "import"
    # an answer that is encoded here has an end token if it is shorter
    decided_by = ("sampling.max_tokens",)

    imported: Path
    """Parquet, .jsonl or .jsonl.gz file, folder of them, or `hub:org/name@COMMIT[:FILE]`. Answers to problems that the
    run does not train on are left out and counted."""
    format: str = "oapl"
    """Layout of the rows: oapl (the authors' schema), verl, prime-rl, open-instruct, trl or messages."""
    temperature: Annotated[float, Field(ge=0.01, le=10.0)] = 1.0
    """Temperature at which they were sampled, where the rows do not say it."""
    end_token: bool = False
    """Whether texts that come without token ids get the end token."""
    reward: str | None = None
    """Reward columns of TRL with their weights, COLUMN=WEIGHT,...; unset: all numbers."""
    judged: bool = False
    """Judge the answers here, by [verifier] and [reward]; else their own rewards are taken."""

    @field_validator("imported")
    @classmethod
    def _is_one_commit(cls, imported: Path) -> Path:
        # before anything runs: what a branch means may change, and sampling may come hours before the import
        if str(imported).startswith(HUB) and not _PINNED.fullmatch(str(imported)):
            raise ValueError(f"{imported}: write hub:org/name@COMMIT, 40 hex digits, from its history on the hub")
        return imported

    @field_validator("format")
    @classmethod
    def _is_known(cls, name: str) -> str:
        # what reads them is imported with the first file that names an import
        from oapl_extras.exchange.formats import FORMATS

        if name not in FORMATS:
            raise ValueError(f"there is no format {name!r}; choose one of {', '.join(FORMATS)}")
        return name

    @property
    def is_on_hub(self) -> bool:
        """Whether the rows are fetched from the hub."""
        return str(self.imported).startswith(HUB)

    @property
    def has_rewards(self) -> bool:
        """Whether their own rewards are taken."""
        return not self.judged

    @property
    def files(self) -> tuple[Path, ...]:
        """Files of rows, as they lie here now; of the hub none."""
        from oapl_extras.exchange.dumped_files import listed
        from oapl_extras.exchange.formats import FORMATS

        if self.is_on_hub:
            return ()
        return tuple(listed(self.imported, FORMATS[self.format])) or (self.imported,)


def room(run: "Run", number: int) -> "Need":
    """Estimate what the import of round ``number`` writes, by the size of its files."""
    from oapl_core.planning.room import Need

    source = run.config.rounds[number].source
    size = sum(file.stat().st_size for file in source.files if file.is_file())
    return Need(f"round {number}: {source.rows_are} need", _JSON_OF_A_BYTE * size, is_measured=False)
