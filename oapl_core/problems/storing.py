"""Writes problems as Parquet (tables.PROBLEMS), in row groups that are bounded by their size.

Tests are in the way of memory: a single problem has up to 189 MB of them. ``set_files.py`` writes files for people.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oapl_core import tables
from oapl_core.storable import storable

if TYPE_CHECKING:
    import pyarrow as pa

# A reader decodes a row group at a time: these bound what it holds, whatever the rows are like.
_MOST_ROWS = 64
_GROUP_BYTES = 32 * 2**20


def write_tables(path: Path, problems: Iterable[Mapping[str, Any]]) -> int:
    """Write complete problems as Parquet, in row groups that memory can hold; returns their number. Not atomic."""
    # 8 values: Arrow looks only so often whether a page is large enough, and 8 tests can have megabytes.
    return tables.write_batches(path, tables.PROBLEMS, problem_tables(problems), values_per_batch=8)


def problem_tables(problems: Iterable[Mapping[str, Any]]) -> "Iterator[pa.Table]":
    """Make Arrow tables of PROBLEMS; one ends after 64 rows, or after the row with which it has 32 MiB of tests."""
    rows, size = list[Mapping[str, Any]](), 0
    for problem in problems:
        rows.append(problem)
        size += size_of_tests(problem)
        del problem  # before the next one is made
        if len(rows) == _MOST_ROWS or size >= _GROUP_BYTES:
            table, rows, size = _table(rows), [], 0
            yield table
            del table
            release_unused()
    if rows:
        yield _table(rows)


def _table(rows: Sequence[Mapping[str, Any]]) -> "pa.Table":
    try:
        return _arrow(rows)
    except UnicodeEncodeError:
        return _arrow(storable(rows))


def _arrow(rows: Sequence[Mapping[str, Any]]) -> "pa.Table":
    """Make a table like ``tables.as_table``, which would need almost four times the memory of the tests for a
    moment.
    """
    import pyarrow as pa

    schema = tables.schema_of(tables.PROBLEMS)
    needed = [name for name in schema.names if name != "tests" and name not in tables.UNUSED]
    more = [name for name in schema.names if name in tables.UNUSED]
    known = [{name: row[name] for name in needed} | {name: row.get(name) for name in more} for row in rows]
    small = tables.as_table(known, _without_tests(schema))
    tests = [test for row in rows for test in row["tests"]]
    ends = list(accumulate((len(row["tests"]) for row in rows), initial=0))
    pairs = pa.StructArray.from_arrays([_texts(tests, key) for key in ("input", "output")], ["input", "output"])
    place = schema.get_field_index("tests")
    column = pa.ListArray.from_arrays(pa.array(ends, pa.int32()), pairs)
    return small.add_column(place, schema.field("tests"), column)


def _without_tests(schema: "pa.Schema") -> "pa.Schema":
    return schema.remove(schema.get_field_index("tests"))


def _texts(tests: Sequence[Mapping[str, str]], key: str) -> "pa.Array":
    """Join one text of each test as large_string, in a buffer of just the right size."""
    import numpy as np
    import pyarrow as pa

    # Each text is encoded twice: first for the size alone, so that no encoded copy of all of them is ever held.
    ends = np.cumsum([0, *(len(test[key].encode()) for test in tests)], dtype=np.int64)
    data = bytearray(int(ends[-1]))
    for start, end, test in zip(ends[:-1], ends[1:], tests, strict=True):
        data[start:end] = test[key].encode()
    return pa.LargeStringArray.from_buffers(len(tests), pa.py_buffer(ends), pa.py_buffer(data))


def size_of_tests(problem: Mapping[str, Any]) -> int:
    """Count the characters of all inputs and outputs."""
    return sum(len(test["input"]) + len(test["output"]) for test in problem["tests"])


def release_unused() -> None:
    """Return what Arrow no longer uses to the system; by itself it keeps what a large row took."""
    import pyarrow as pa

    pa.default_memory_pool().release_unused()
