"""A round's rollouts with their verdicts, problems and prompts side by side, as one lazy Polars table.

Reads round_NN/1_rollouts, round_NN/2_verdicts (the parts that the ledger records), problems.parquet, prompts.parquet.
Nothing is loaded before a query asks for it: token columns and tests of what is not shown stay on the disk.
"""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from oapl_core import tables
from oapl_core.errors import ConfigError, DataError
from oapl_core.run_folder.run_record import RunRecord
from oapl_core.turns import sampled_tokens
from oapl_core.turns.counts import counts_of_rows

if TYPE_CHECKING:
    import polars as pl


def chosen_round(record: RunRecord, number: int | None) -> int:
    """Return ``number``, or the last round that has rollouts.

    Raises:
        ConfigError: the run has no such round.
        DataError: nothing was sampled there yet.
    """
    run, count = record.run, len(record.run.config.rounds)
    if number is not None and not 0 <= number < count:
        raise ConfigError(f"round {number}: {run.root} has rounds 0 to {count - 1}")
    for candidate in range(count - 1, -1, -1) if number is None else (number,):
        if record.parts(run.rollouts(candidate)):
            return candidate
    where = run.root if number is None else run.rollouts(number)
    raise DataError(f"{where}: holds no finished rollouts yet; `oapl status {run.root}` says how far the run got")


def joined(
    record: RunRecord, number: int, parts: Collection[str] | None = None, problem_ids: Collection[str] | None = None
) -> "pl.LazyFrame":
    """Scan one row for each rollout of round ``number``, in the order of the parts.

    Columns are those of rollouts and verdicts, and ``part`` (file name), ``kind``, ``structure``, ``prompt``.
    Others are ``expected_answer`` (of a maths problem), ``problem_tests`` (how many), ``failing_input`` and
    ``failing_expected`` (of the first failing test). The model's own tokens give ``response_tokens`` and
    ``mean_logprob`` (nats). The last are ``turns``, ``calls`` and ``failed_calls``. No verdict yet: nulls.

    Args:
        record: of an opened run.
        number: round, from 0; see ``chosen_round``.
        parts: only these parts, by file name.
        problem_ids: only these problems.

    Raises:
        DataError: a table is missing or torn, or has other columns.
    """
    import polars as pl

    def scan(paths: list[Path], fields: Sequence[tuple[str, str]]) -> "pl.LazyFrame":
        for path in paths:
            with tables.open_table(path, fields):  # names what is torn or has other columns; a scan does not
                pass
        found = pl.scan_parquet(paths, include_file_paths="part")
        return found if problem_ids is None else found.filter(pl.col("problem_id").is_in(list(problem_ids)))

    def wanted(folder: Path) -> list[Path]:
        return [path for path in record.parts(folder) if parts is None or path.name in parts]

    run = record.run
    rollouts, judged = scan(wanted(run.rollouts(number)), tables.ROLLOUTS), wanted(run.verdicts(number))
    verdicts = scan(judged, tables.VERDICTS) if judged else None
    if verdicts is None:
        verdicts = pl.DataFrame(tables.schema_of(tables.VERDICTS).empty_table()).lazy()
    problems = scan([run.problems], tables.PROBLEMS).select(
        "problem_id", "kind", "structure", "tests", expected_answer="answer"
    )
    prompts = scan([run.prompts], tables.PROMPTS).select("problem_id", "prompt")
    side_by_side = (
        # left joins in the order of the rollouts: not every rollout is judged, and pages show parts as they lie
        rollouts.with_columns(pl.col("part").str.split("/").list.last())
        .join(verdicts.drop("part", "problem_id", strict=False), on="rollout_id", how="left", maintain_order="left")
        .join(problems, on="problem_id", how="left", maintain_order="left")
        .join(prompts, on="problem_id", how="left", maintain_order="left")
    )
    return side_by_side.with_columns(**_computed()).drop("tests")


def _computed() -> "dict[str, pl.Expr]":
    import polars as pl

    sampled = sampled_tokens()
    # null where the index is: no test failed, or the problem has none
    failing = pl.col("tests").list.get(pl.col("first_failing_test"), null_on_oob=True)
    return {
        "response_tokens": sampled,
        "mean_logprob": pl.col("logprobs").list.sum() / sampled,  # the environment's are 0
        **counts_of_rows(),
        "problem_tests": pl.col("tests").list.len().cast(pl.Int64),
        "failing_input": failing.struct.field("input"),
        "failing_expected": failing.struct.field("output"),
    }
