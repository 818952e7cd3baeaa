"""Facts from a run's ledger and files, each read in one way; for the report of a run and for runs side by side.

Reads ledger.jsonl, training_metrics.jsonl and the Parquet files that the ledger records; writes nothing.
"""

import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oapl_core import tables
from oapl_core.errors import DataError
from oapl_core.run_folder.ledger import ArtifactEntry
from oapl_core.run_folder.run import Run, parts_of

if TYPE_CHECKING:
    import polars as pl

BASE = "base"
"""Name that the evaluation gives to the policy that round 0 starts training at."""
ONE_SET = "held-out problems"
"""Name of the problem set in runs that do not say where each problem comes from."""


def recorded_parts(run: Run, folder: Path) -> list[Path]:
    """List the parts of ``folder`` that the ledger records and that still exist, in order."""
    # a part that is not recorded is half-written, or belongs to a stage that is running now
    known = run.ledger.artifacts()
    return [path for path in parts_of(folder) if run.name(path) in known]


def entries_in(run: Run, folder: Path) -> list[ArtifactEntry]:
    """List the ledger's entries of the files in ``folder``, also of those that `oapl clean` removed since."""
    prefix = f"{run.name(folder)}/"
    return [entry for name, entry in run.ledger.artifacts().items() if name.startswith(prefix)]


def rollouts_sampled(run: Run, number: int) -> int:
    """Count rollouts of round ``number`` so far, from the ledger, so that a cleaned run gives the same number."""
    return sum(entry.rows for entry in entries_in(run, run.rollouts(number)))


def rollouts_removed(run: Run, number: int) -> bool:
    """Tell whether a person removed the rollouts of the round; one rule removes all of a round or none."""
    return any(name.startswith(f"{run.name(run.rollouts(number))}/") for name in run.ledger.removals())


def trained_epochs(run: Run) -> dict[tuple[int, int], str]:
    """Map (round, epoch counted from 1) of every finished epoch to the policy hash of its checkpoint."""
    artifacts, hashes = run.ledger.artifacts(), {}
    for number, settings in enumerate(run.config.rounds):
        for epoch in range(1, settings.epochs + 1):
            entry = artifacts.get(run.name(run.checkpoint(number, epoch)))
            if entry is not None:
                hashes[number, epoch] = str(detail(entry, "policy_hash"))
    return hashes


def detail(entry: ArtifactEntry, key: str) -> Any:
    """Return one of the ledger's details of an artifact, beside its name, hash and rows.

    Raises:
        DataError: the ledger does not say ``key``.
    """
    if key not in entry.details:
        raise DataError(
            f"{entry.artifact}: the ledger does not say `{key}`; it was made by another version, delete it to remake it"
        )
    return entry.details[key]


def frame(
    paths: Sequence[Path],
    fields: Sequence[tuple[str, str]],
    columns: Sequence[str] | None = None,
    only: tuple[str, Collection[str]] | None = None,
) -> "pl.DataFrame":
    """Read one table from its parts, at least one; arguments and errors are those of ``tables.read_table``."""
    import polars as pl

    return pl.concat([pl.DataFrame(tables.read_table(path, fields, columns, only)) for path in paths])


def metric_lines(path: Path) -> list[dict[str, Any]]:
    """Read the line that training wrote about each optimiser step of an epoch, in order.

    Raises:
        DataError: the file is missing or is not JSON lines.
    """
    remedy = "delete the checkpoint's folder and run the experiment again"
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines if line]
    except FileNotFoundError:
        raise DataError(f"{path}: is missing; {remedy}") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: is not JSON lines ({error}); {remedy}") from None


def sources_of(run: Run) -> dict[str, str]:
    """Held-out problem -> the set that it comes from, where problems.parquet says so."""
    import pyarrow.parquet as pq

    with tables.readable(run.problems):
        names = pq.read_schema(run.problems).names
    if "source" not in names:  # problems prepared before sets had names
        return {}
    columns = ("problem_id", "split", "source")
    rows = tables.read_table(run.problems, tables.PROBLEMS, columns, ("split", ("heldout",))).to_pylist()
    return {row["problem_id"]: row["source"] or ONE_SET for row in rows}


def foreign_checkpoint(run: Run, checkpoint: str) -> DataError:
    """Make the error of an evaluation that measured ``checkpoint``, as it is to be named, which is none of this run."""
    return DataError(
        f"{run.evaluation()}: measured {checkpoint}, which no round of this run made; delete the file to remake it"
    )
