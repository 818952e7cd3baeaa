"""Every table that crosses a stage boundary, as Arrow schemas; data/README.md explains each column to a person.

One row of ROLLOUTS, VERDICTS and GROUPS is one rollout, keyed by ``rollout_id``. Log-probs are natural logarithms.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oapl_core.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa


def _schema(fields: Sequence[tuple[str, str]]) -> "pa.Schema":
    import pyarrow as pa

    tests = pa.list_(pa.struct([("input", pa.large_string()), ("output", pa.large_string())]))
    types = {
        "str": pa.string(), "text": pa.large_string(), "int32": pa.int32(), "int64": pa.int64(),
        "float32": pa.float32(), "ids": pa.list_(pa.int32()), "logprobs": pa.list_(pa.float32()),
        "time": pa.timestamp("us", tz="UTC"), "tests": tests,
    }  # fmt: skip
    return pa.schema([(name, types[kind]) for name, kind in fields])


PROBLEMS = (
    ("problem_id", "str"), ("split", "str"), ("kind", "str"), ("statement", "text"), ("starter_code", "text"),
    ("entry_point", "str"), ("tests", "tests"), ("answer", "text"), ("checker", "str"), ("structure", "str"),
)  # fmt: skip

PROMPTS = (("problem_id", "str"), ("split", "str"), ("prompt", "text"), ("prompt_ids", "ids"))

ROLLOUTS = (
    ("run", "str"), ("round", "int32"), ("problem_id", "str"), ("rollout_id", "str"), ("sample", "int32"),
    ("policy_hash", "str"), ("response_ids", "ids"), ("logprobs", "logprobs"), ("logprobs_mode", "str"),
    ("finish_reason", "str"), ("text", "text"), ("temperature", "float32"), ("top_p", "float32"), ("top_k", "int32"),
    ("max_tokens", "int32"), ("seed", "int64"), ("engine", "str"), ("sampled_at", "time"),
)  # fmt: skip

VERDICTS = (
    ("rollout_id", "str"), ("problem_id", "str"), ("reward", "float32"), ("outcome", "str"), ("tests_passed", "int32"),
    ("tests_run", "int32"), ("first_failing_test", "int32"), ("excerpt", "text"), ("answer", "text"),
    ("cpu_s", "float32"), ("wall_s", "float32"), ("peak_memory_mb", "float32"), ("verifier_version", "str"),
    ("sandbox_level", "str"),
)  # fmt: skip

AUDITS = (
    ("rollout_id", "str"), ("problem_id", "str"), ("outcome", "str"), ("tests_run", "int32"),
    ("first_failing_test", "int32"), ("excerpt", "text"), ("wall_s", "float32"),
)  # fmt: skip

GROUPS = (
    ("rollout_id", "str"), ("problem_id", "str"), ("group", "int32"), ("policy_hash", "str"), ("prompt_ids", "ids"),
    ("response_ids", "ids"), ("behavior_logprobs", "logprobs"), ("temperature", "float32"), ("reward", "float32"),
)  # fmt: skip

EVALUATIONS = (
    ("checkpoint", "str"), ("policy_hash", "str"), ("split", "str"), ("problem_id", "str"), ("kind", "str"),
    ("sample", "int32"), ("reward", "float32"), ("outcome", "str"), ("response_tokens", "int32"),
    ("finish_reason", "str"), ("text", "text"), ("temperature", "float32"), ("top_p", "float32"),
    ("max_tokens", "int32"), ("seed", "int64"),
)  # fmt: skip

# Token ids and log-probs are stored byte by byte, without a dictionary: 18 % smaller on the demo's rollouts.
_STREAMED = frozenset({"response_ids", "logprobs", "behavior_logprobs", "prompt_ids"})


def write_table(
    path: Path, fields: Sequence[tuple[str, str]], rows: Iterable[Mapping[str, Any]], rows_per_group: int = 1024
) -> int:
    """Write ``rows`` to ``path`` as Parquet with the schema of ``fields``; returns the number of rows.

    A row must have exactly the schema's columns (an extra or missing key is our own bug: AssertionError). Not atomic:
    callers write inside ``Run.writing``.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = _schema(fields)
    names = {name for name, _ in fields}
    split = {f"{n}.list.element": "BYTE_STREAM_SPLIT" for n in sorted(names & _STREAMED)}
    others = [n for n in schema.names if n not in _STREAMED]
    total, chunk = 0, list[Mapping[str, Any]]()
    with pq.ParquetWriter(
        path, schema, compression="zstd", compression_level=1, column_encoding=split or None, use_dictionary=others
    ) as writer:
        for row in rows:
            assert row.keys() == names, f"{path.name}: row has columns {sorted(row)}, the table has {sorted(names)}"
            chunk.append(row)
            if len(chunk) == rows_per_group:
                writer.write_table(pa.Table.from_pylist(chunk, schema=schema))
                total, chunk = total + len(chunk), []
        if chunk:
            writer.write_table(pa.Table.from_pylist(chunk, schema=schema))
    return total + len(chunk)


def read_table(
    path: Path,
    fields: Sequence[tuple[str, str]],
    columns: Sequence[str] | None = None,
    only: tuple[str, Collection[str]] | None = None,
) -> "pa.Table":
    """Read ``path`` and check it against the schema of ``fields``; ``only`` keeps rows whose column has these values
    (with ``columns``, one of them).

    Row groups are read one at a time, so that memory holds what is kept and little more.

    Raises:
        DataError: the file is missing, torn, or has other columns than documented.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    schema = _schema(fields)
    try:
        with pq.ParquetFile(path) as file:
            if file.schema_arrow.remove_metadata() != schema:
                wrong = sorted(set(file.schema_arrow.names) ^ set(schema.names)) or "types"
                raise DataError(f"{path}: does not have the documented columns ({wrong}); see data/README.md")
            names = [name for name in schema.names if columns is None or name in columns]
            if only is None:
                return file.read(columns=names)
            column, values = only
            wanted = pc.field(column).isin(pa.array(list(values), schema.field(column).type))
            groups = [file.read_row_group(g, columns=names).filter(wanted) for g in range(file.num_row_groups)]
            return pa.concat_tables([file.schema_arrow.empty_table().select(names), *groups])
    except FileNotFoundError:
        raise DataError(f"{path}: is missing; run the same command again to make it") from None
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(
            f"{path}: cannot be read as Parquet ({str(error).splitlines()[0]}); delete it to remake it"
        ) from None


def count_rows(path: Path) -> int:
    """Number of rows, from the file's footer alone.

    Raises:
        DataError: the file is missing or torn.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return int(pq.read_metadata(path).num_rows)
    except (FileNotFoundError, pa.ArrowInvalid, OSError) as error:
        raise DataError(
            f"{path}: cannot be read as Parquet ({str(error).splitlines()[0]}); delete it to remake it"
        ) from None
