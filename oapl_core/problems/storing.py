"""Writes problem sets: .jsonl, .jsonl.gz or .parquet (columns of tables.PROBLEMS), whole or not at all.

Tests are in the way of memory: a single problem has up to 189 MB of them. So rows go to the disk one by one as JSON,
and in row groups that are bounded by their size as Parquet.
"""

import gzip
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from oapl_core import tables
from oapl_core.errors import ConfigError
from oapl_core.files import fsync
from oapl_core.problems.raw_rows import release_unused
from oapl_core.storable import storable

if TYPE_CHECKING:
    import pyarrow as pa

# A reader decodes a row group at a time: these bound what it holds, whatever the rows are like.
_MOST_ROWS = 64
_GROUP_BYTES = 32 * 2**20


def write_problem_set(path: Path, problems: Iterable[Mapping[str, Any]]) -> int:
    """Write complete problems to ``path``; returns their number. What was there is replaced when all are written.

    Raises:
        ConfigError: the name is of no kind that can be written.
    """
    check_name(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".tmp-{path.name}")
    try:
        if path.suffix == ".parquet":
            rows = write_tables(draft, problems)
        else:
            rows = _write_lines(draft, problems)
        fsync(draft)  # before the name is its: after a power cut a renamed file could be empty
        draft.rename(path)
    finally:
        draft.unlink(missing_ok=True)
    return rows


def write_tables(path: Path, problems: Iterable[Mapping[str, Any]]) -> int:
    """Write complete problems as Parquet, in row groups that memory can hold; returns their number. Not atomic."""
    # 8 values: Arrow looks only so often whether a page is large enough, and 8 tests can have megabytes.
    return tables.write_batches(path, tables.PROBLEMS, problem_tables(problems), values_per_batch=8)


def check_name(path: Path) -> None:
    """Raise ConfigError unless ``path`` is named as a file that can be written."""
    if not path.name.endswith((".jsonl", ".jsonl.gz", ".parquet")):
        raise ConfigError(f"{path}: name the file .jsonl, .jsonl.gz or .parquet")


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


def _write_lines(path: Path, problems: Iterable[Mapping[str, Any]]) -> int:
    number = 0
    with _opened(path) as file:
        for problem in problems:
            file.writelines(_line(problem))
            number += 1
            del problem  # before the next one is made
    return number


def _line(problem: Mapping[str, Any]) -> Iterator[str]:
    """Yield the problem as a line of JSON, test by test."""
    yield json.dumps({key: value for key, value in problem.items() if key != "tests"})[:-1]
    yield ', "tests": ['
    for number, test in enumerate(problem["tests"]):
        yield f"{', ' if number else ''}{json.dumps(test)}"
    yield "]}\n"


def _opened(path: Path) -> IO[str]:
    if path.suffix == ".gz":
        return gzip.open(path, "wt", encoding="utf-8", compresslevel=6)
    return path.open("w", encoding="utf-8")
