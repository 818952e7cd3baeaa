"""Every table that crosses a stage boundary, as Arrow schemas; data/columns.toml explains each to a person.

One row of ROLLOUTS, VERDICTS and GROUPS is one rollout, keyed by ``rollout_id``. Log-probs are natural logarithms. A
column is written as its name and its kind, which ``_arrow_types`` turns into a type.
"""

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from ctypes import c_float
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oapl_core.errors import DataError
from oapl_core.storable import storable
from oapl_core.token_columns import COLUMNS

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

LOSS_MASK = "loss_mask"
"""Column of ROLLOUTS and GROUPS, true at tokens that the model sampled."""
TURNS = (
    (LOSS_MASK, "mask"),
    ("turn_starts", "ids"),
    ("prompt_hashes", "int64s"),
    ("tool_calls", "tool_calls"),
    ("turn_rewards", "float64s"),
    ("environment", "str"),
)
"""Columns of ROLLOUTS where the model may speak more than once (turns/); null in a row of one turn."""
CORRECT = 1.0
"""An answer is correct if its reward is at least this, unless `[reward] right_from` says otherwise."""
REWARD_PREFIX = "reward_"
"""Beginning of the names of columns that `[reward]` adds to VERDICTS (settings/reward.py)."""


def as_stored(reward: float) -> float:
    """Round a reward, or a threshold of rewards, to what a column of rewards can hold, which is float32.

    Both sides of each comparison go through here: a stored 0.9 is less than 0.9, a stored 0.6 more than 0.6.
    """
    return c_float(reward).value


def is_correct(reward: float | None, right_from: float = CORRECT) -> bool | None:
    """Decide the column ``correct`` of a verdict with this reward; None (not judged) where there is no reward."""
    return None if reward is None else as_stored(reward) >= as_stored(right_from)


def _arrow_types() -> "dict[str, pa.DataType]":
    """Return Arrow's type of each kind of column."""
    import pyarrow as pa

    # offsets of 32 bits would end a column's piece at 2 GiB, which texts reach
    call: Any = [("turn", pa.int32()), ("name", pa.string()), ("arguments", pa.large_string())]
    call += [("result", pa.large_string()), ("is_error", pa.bool_()), ("seconds", pa.float64())]
    return {
        "str": pa.string(),
        "text": pa.large_string(),
        "int32": pa.int32(),
        "int64": pa.int64(),
        "float32": pa.float32(),
        "ids": pa.list_(pa.int32()),
        "logprobs": pa.list_(pa.float32()),
        "time": pa.timestamp("us", tz="UTC"),
        "bytes": pa.large_binary(),
        "tests": pa.list_(pa.struct([("input", pa.large_string()), ("output", pa.large_string())])),
        "bool": pa.bool_(),
        "mask": pa.list_(pa.bool_()),
        "int64s": pa.list_(pa.int64()),
        "float64s": pa.list_(pa.float64()),
        "tool_calls": pa.list_(pa.struct(call)),
    }


def schema_of(fields: Sequence[tuple[str, str]]) -> "pa.Schema":
    """Return the Arrow schema of one of the tables below."""
    import pyarrow as pa

    types = _arrow_types()
    return pa.schema([(name, types[kind]) for name, kind in fields])


LAG = "lag"
"""Column: rounds that the weights that sampled a row are older than those trained on it (groups/replay.py)."""

PROBLEMS = (  # problems.parquet, by problems/prepare.py
    ("problem_id", "str"),
    ("split", "str"),
    ("kind", "str"),
    ("statement", "text"),
    ("starter_code", "text"),
    ("entry_point", "str"),
    ("tests", "tests"),
    ("answer", "text"),
    *((name, "str") for name in ("checker", "structure", "source", "platform", "difficulty", "released", "flaw")),
    ("language", "str"),
    ("messages", "text"),
    ("info", "text"),
)

PROMPTS = (("problem_id", "str"), ("split", "str"), ("prompt", "text"), ("prompt_ids", "ids"))  # prompts.parquet

ROLLOUTS = (  # 1_rollouts/, by rollouts/generate.py
    ("run", "str"),
    ("round", "int32"),
    ("problem_id", "str"),
    ("rollout_id", "str"),
    ("sample", "int32"),
    ("policy_hash", "str"),
    ("response_ids", "ids"),
    ("logprobs", "logprobs"),
    ("logprobs_mode", "str"),
    ("finish_reason", "str"),
    ("text", "text"),
    *((name, "float32") for name in ("temperature", "top_p")),
    ("top_k", "int32"),
    ("max_tokens", "int32"),
    ("seed", "int64"),
    ("engine", "str"),
    ("sampled_at", "time"),
    *((name, "bytes") for name in COLUMNS),
    *TURNS,
)

VERDICTS = (  # 2_verdicts/, by verdicts/verify.py
    ("rollout_id", "str"),
    ("problem_id", "str"),
    ("reward", "float32"),
    ("correct", "bool"),
    ("outcome", "str"),
    ("tests_passed", "int32"),
    ("tests_run", "int32"),
    ("first_failing_test", "int32"),
    ("excerpt", "text"),
    ("answer", "text"),
    *((name, "float32") for name in ("cpu_s", "wall_s", "peak_memory_mb")),
    ("verifier_version", "str"),
    ("sandbox_level", "str"),
)

AUDITS = (  # 2_audit.parquet: some passes judged again, by oapl_extras/audit
    ("rollout_id", "str"),
    ("problem_id", "str"),
    ("outcome", "str"),
    ("tests_run", "int32"),
    ("first_failing_test", "int32"),
    ("excerpt", "text"),
    ("wall_s", "float32"),
)

GROUPS = (  # 3_groups.parquet, by groups/build.py: what training reads
    ("rollout_id", "str"),
    ("problem_id", "str"),
    ("group", "int32"),
    ("policy_hash", "str"),
    ("prompt_ids", "ids"),
    ("response_ids", "ids"),
    ("behavior_logprobs", "logprobs"),
    ("temperature", "float32"),
    ("reward", "float32"),
    ("correct", "bool"),
    (LAG, "int32"),
    *((name, "bytes") for name in COLUMNS),
    (LOSS_MASK, "mask"),
)

UNUSED = frozenset({"language", "messages", "info", LAG, *COLUMNS, *dict(TURNS)})
"""Columns that a row may leave out, which is null: those of what its run does not use."""
CARRIED = tuple(name for name, _ in GROUPS if name in UNUSED and name in dict(ROLLOUTS))
"""Columns of UNUSED that a row of GROUPS has from its rollout, one value or several for each token."""
TOKEN_BYTES = 8  # id and log-prob
REFERENCES = (("rollout_id", "str"), ("reference_logprobs", "logprobs"))  # 3_reference.parquet

MISMATCHES = (  # engine_mismatch.parquet: engine against trainer, by training/mismatch.py
    ("rollout_id", "str"),
    ("response_tokens", "int32"),
    *((name, "float32") for name in ("mean_difference", "max_difference", "sum_difference", "k3")),
    ("first_drift", "int32"),
)

EVALUATIONS = (  # made from an evaluation's ROLLOUTS and VERDICTS
    ("checkpoint", "str"),
    ("policy_hash", "str"),
    ("split", "str"),
    ("problem_id", "str"),
    ("kind", "str"),
    ("sample", "int32"),
    ("reward", "float32"),
    ("correct", "bool"),
    ("outcome", "str"),
    ("response_tokens", "int32"),
    ("finish_reason", "str"),
    ("text", "text"),
    *((name, "float32") for name in ("temperature", "top_p")),
    ("max_tokens", "int32"),
    ("seed", "int64"),
)

# How the large columns are stored, by measurement (docs/benchmarks/store.md): log-probs byte by byte, token ids with a
# dictionary. Byte by byte would do for ids too, but DuckDB reads that of floating-point numbers only.
_IDS = frozenset({"response_ids", "prompt_ids"})
_STREAMED = frozenset({"logprobs", "behavior_logprobs", "reference_logprobs"})
_ROW_GROUP_TOKENS = 2**20
"""Tokens that a reader of a whole table holds at once; a longer single row is a row group of its own."""


def write_table(
    path: Path, fields: Sequence[tuple[str, str]], rows: Iterable[Mapping[str, Any]], rows_per_group: int = 1024
) -> int:
    """Write ``rows`` to ``path`` as Parquet with the schema of ``fields``; returns the number of rows.

    Rows have the schema's columns, or leave out those of UNUSED; lists may be NumPy arrays. Not atomic: callers write
    inside ``Run.writing``.
    """
    schema = schema_of(fields)
    chunks = _chunks(rows, {name for name, _ in fields}, rows_per_group, path.name)
    return write_batches(path, fields, (as_table(chunk, schema) for chunk in chunks))


def as_table(rows: Sequence[Mapping[str, Any]], schema: "pa.Schema") -> "pa.Table":
    """Convert ``rows`` to Arrow, lone surrogates of their texts replaced (storable.py)."""
    import pyarrow as pa

    try:
        return pa.Table.from_pylist(rows, schema=schema)
    except UnicodeEncodeError:  # rare, and looking at every text first would take its time from every row
        return pa.Table.from_pylist(storable(rows), schema=schema)


def _chunks(
    rows: Iterable[Mapping[str, Any]], names: Set[str], most_rows: int, file: str
) -> Iterator[list[Mapping[str, Any]]]:
    """Yield ``rows`` in pieces of so many rows or _ROW_GROUP_TOKENS, whichever is less."""
    lists = sorted((_IDS | _STREAMED) & set(names))
    chunk, tokens = list[Mapping[str, Any]](), 0
    for row in rows:
        # writers need not know columns that a run does not use: those are null
        differs = row.keys() ^ names
        fits = not differs or (differs <= UNUSED and row.keys() <= names)
        assert fits, f"{file}: row has columns {sorted(row)}, the table has {sorted(names)}"
        size = max((len(row[name]) for name in lists if row[name] is not None), default=0)
        size += sum(len(row.get(name) or b"") for name in COLUMNS) // TOKEN_BYTES
        if chunk and (len(chunk) == most_rows or tokens + size > _ROW_GROUP_TOKENS):
            yield chunk
            chunk, tokens = [], 0
        chunk.append(row)
        tokens += size
    if chunk:
        yield chunk


def write_batches(
    path: Path, fields: Sequence[tuple[str, str]], batches: "Iterable[pa.Table]", values_per_batch: int | None = None
) -> int:
    """Write Arrow tables with the schema of ``fields``, each as one row group; returns the number of rows.

    A page is ended where it is large enough, which is looked at once in ``values_per_batch`` (unset: Arrow's 1024).
    Every page carries a checksum, which our readers verify. Not atomic: callers write inside ``Run.writing``.

    Raises:
        OSError: the disk is full or failing; names ``path``.
    """
    import pyarrow.parquet as pq

    schema = schema_of(fields)
    scalars = [name for name in schema.names if name not in {*_IDS, *_STREAMED, *COLUMNS}]
    ids, streamed = ([f"{name}.list.element" for name in schema.names if name in kind] for kind in (_IDS, _STREAMED))
    total = 0
    try:
        with pq.ParquetWriter(
            path,
            schema,
            compression="zstd",
            compression_level=1,
            use_dictionary=scalars + ids,
            write_statistics=scalars,
            column_encoding=dict.fromkeys(streamed, "BYTE_STREAM_SPLIT") or None,
            write_page_checksum=True,
            write_batch_size=values_per_batch,
        ) as writer:
            for batch in batches:
                writer.write_table(batch, row_group_size=max(1, batch.num_rows))
                total += batch.num_rows
                del batch  # before the next one is made: it may be large
    except OSError as error:
        if error.filename is not None or error.errno is None:
            raise
        raise OSError(error.errno, os.strerror(error.errno), str(path)) from error  # Arrow leaves the name out
    return total


@contextmanager
def open_table(path: Path, fields: Sequence[tuple[str, str]]) -> "Iterator[pq.ParquetFile]":
    """Open ``path`` for reading row group by row group, checked against the schema of ``fields``; checksums are
    verified.

    Raises:
        DataError: the file is missing, torn, damaged (also found while it is read), or has other columns.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = schema_of(fields)
    # without pre_buffer a reader holds one row group, not all that it will read
    with readable(path), pq.ParquetFile(path, page_checksum_verification=True, pre_buffer=False) as file:
        stored = pa.schema([field for field in file.schema_arrow if not field.name.startswith(REWARD_PREFIX)])
        if stored != schema:
            differing = set(stored.names) ^ set(schema.names)
            is_older = differing and not set(stored.names) - set(schema.names) and differing <= {"correct", *UNUSED}
            hint = "oapl 0.1.0 wrote it, and opens it" if is_older else "see data/README.md"
            raise DataError(f"{path}: does not have the documented columns ({sorted(differing) or 'types'}); {hint}")
        yield file


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turn what Arrow raises while ``path`` is read into a DataError that names it."""
    import pyarrow as pa

    try:
        yield
    except FileNotFoundError:
        raise DataError(f"{path}: is missing; run the same command again to make it") from None
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(
            f"{path}: cannot be read as Parquet ({str(error).splitlines()[0]}); delete it to remake it"
        ) from None


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
        DataError: the file is missing, torn or damaged, or has other columns than documented.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    schema = schema_of(fields)
    with open_table(path, fields) as file:
        names = [name for name in schema.names if columns is None or name in columns]
        if only is None:
            return file.read(columns=names)
        column, values = only
        wanted = pc.field(column).isin(pa.array(list(values), schema.field(column).type))
        groups = [file.read_row_group(g, columns=names).filter(wanted) for g in range(file.num_row_groups)]
        return pa.concat_tables([file.schema_arrow.empty_table().select(names), *groups])


def count_rows(path: Path) -> int:
    """Number of rows, from the file's footer alone. Raises DataError if it is missing or torn."""
    import pyarrow.parquet as pq

    with readable(path):
        return int(pq.read_metadata(path).num_rows)
