"""A round's rollouts with their verdicts, problems and prompts side by side, as one lazy Polars table.

Reads round_NN/1_rollouts, round_NN/2_verdicts (the parts that the ledger records), problems.parquet, prompts.parquet.
Nothing is loaded before a query asks for it: token columns and tests of what is not shown stay on the disk.
"""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from oapl_core import tables
from oapl_core.errors import ConfigError, DataError
from oapl_core.reports.records import recorded_parts
from oapl_core.run_folder.run import Run
from oapl_core.turns import sampled_tokens

if TYPE_CHECKING:
    import polars as pl


def chosen_round(run: Run, number: int | None) -> int:
    """Return ``number``, or the last round that has rollouts.

    Raises:
        ConfigError: the run has no such round.
        DataError: nothing was sampled there yet.
    """
    count = len(run.config.rounds)
    if number is not None and not 0 <= number < count:
        raise ConfigError(f"round {number}: {run.root} has rounds 0 to {count - 1}")
    for candidate in range(count - 1, -1, -1) if number is None else (number,):
        if recorded_parts(run, run.rollouts(candidate)):
            return candidate
    where = run.root if number is None else run.rollouts(number)
    raise DataError(f"{where}: holds no finished rollouts yet; `oapl status {run.root}` says how far the run got")


def joined(
    run: Run, number: int, parts: Collection[str] | None = None, problem_ids: Collection[str] | None = None
) -> "pl.LazyFrame":
    """Scan one row for each rollout of round ``number``, in the order of the parts.

    Columns are those of rollouts and verdicts, and ``part`` (file name), ``kind``, ``structure``, ``prompt``. Others
    are ``expected_answer`` (of a maths problem), ``problem_tests`` (how many), ``failing_input`` and
    ``failing_expected`` (of the first failing test). The model's own tokens give ``response_tokens`` and
    ``mean_logprob`` (nats). The last are ``turns``, ``calls`` and ``failed_calls``. No verdict yet: nulls.

    Args:
        run: an opened run.
        number: round, from 0; see ``chosen_round``.
        parts: only these parts, by file name.
        problem_ids: only these problems.

    Raises:
        DataError: a table is missing or torn, or has other columns.
    """
    import polars as pl

    def scan(folder: Path, fields: Sequence[tuple[str, str]]) -> "pl.LazyFrame | None":
        wanted = [path for path in recorded_parts(run, folder) if parts is None or path.name in parts]
        for path in wanted:
            with tables.open_table(path, fields):  # names the part that is torn or has other columns; a scan does not
                pass
        return _of(pl.scan_parquet(wanted, include_file_paths="part"), problem_ids) if wanted else None

    rollouts, verdicts = scan(run.rollouts(number), tables.ROLLOUTS), scan(run.verdicts(number), tables.VERDICTS)
    assert rollouts is not None, f"round {number} has no rollouts; chosen_round says so to a person"
    if verdicts is None:
        verdicts = pl.DataFrame(tables.schema_of(tables.VERDICTS).empty_table()).lazy()
    for path, fields in ((run.problems, tables.PROBLEMS), (run.prompts, tables.PROMPTS)):
        with tables.open_table(path, fields):
            pass
    problems = _of(pl.scan_parquet(run.problems), problem_ids).select(
        "problem_id", "kind", "structure", "tests", pl.col("answer").alias("expected_answer")
    )
    prompts = _of(pl.scan_parquet(run.prompts), problem_ids).select("problem_id", "prompt")
    side_by_side = (
        # left joins in the order of the rollouts: not every rollout is judged, and pages show parts as they lie
        rollouts.with_columns(pl.col("part").str.split("/").list.last())
        .join(verdicts.drop("part", "problem_id", strict=False), on="rollout_id", how="left", maintain_order="left")
        .join(problems, on="problem_id", how="left", maintain_order="left")
        .join(prompts, on="problem_id", how="left", maintain_order="left")
    )
    return side_by_side.with_columns(**_computed()).drop("tests")


def _of(frame: "pl.LazyFrame", problem_ids: Collection[str] | None) -> "pl.LazyFrame":
    import polars as pl

    return frame if problem_ids is None else frame.filter(pl.col("problem_id").is_in(list(problem_ids)))


def _computed() -> "dict[str, pl.Expr]":
    import polars as pl

    sampled, calls = sampled_tokens(), pl.col("tool_calls")
    # null where the index is: no test failed, or the problem has none
    failing = pl.col("tests").list.get(pl.col("first_failing_test"), null_on_oob=True)
    return {
        "response_tokens": sampled,
        "mean_logprob": pl.col("logprobs").list.sum() / sampled,  # the environment's are 0
        "turns": pl.col("turn_starts").list.len().cast(pl.Int64).fill_null(1),
        "calls": calls.list.len().cast(pl.Int64),
        "failed_calls": calls.list.eval(pl.element().struct.field("is_error")).list.sum().cast(pl.Int64),
        "problem_tests": pl.col("tests").list.len().cast(pl.Int64),
        "failing_input": failing.struct.field("input"),
        "failing_expected": failing.struct.field("output"),
    }
