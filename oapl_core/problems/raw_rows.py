"""Reads the rows of a file as they are: .jsonl, .json (both also .gz), .csv, .parquet, .arrow. Writes nothing.

Rows are read one at a time. A single problem of LiveCodeBench has 189 MB of tests, so nothing here holds a row that it
has handed out. One row of a large row group in Parquet is decoded at a time. But Parquet reads at least a page, and a
.json array is read whole.
"""

import csv
import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, cast

from oapl_core.errors import DataError
from oapl_core.settings.problems import FILE_KINDS
from oapl_core.storable import storable
from oapl_core.tables import count_rows

_READ_BYTES = 32 * 2**20  # size of a row group: above it, rows are decoded one by one, which costs time
_MOST_ROWS = 64
_HALF = re.compile(rb"\\u[dD][89a-fA-F]|\xed[\xa0-\xbf]")
"""May be a lone surrogate, escaped or as it is: rows without it need not be looked at text by text."""


def is_readable(path: Path) -> bool:
    """Return whether the name has a suffix that `raw_rows` reads."""
    return path.name.endswith(FILE_KINDS)


def raw_rows(path: Path, torn_is_none: bool = False) -> Iterator[tuple[int, Any]]:
    """Yield (number counted from 1, row) of every row; empty lines are skipped.

    With ``torn_is_none`` a line that is not JSON is the row None; else it is an error.

    Raises:
        DataError: the file cannot be read; one line with file, place and remedy.
    """
    if not path.is_file():
        raise DataError(f"{path}: there is no such file")
    if path.suffix == ".parquet":
        yield from _parquet_rows(path)
    elif path.suffix == ".arrow":
        yield from _arrow_rows(path)
    elif path.suffix == ".csv":
        yield from _csv_rows(path)
    elif path.name.endswith((".json", ".json.gz")):
        yield from _json_rows(path)
    elif path.name.endswith((".jsonl", ".jsonl.gz")):
        yield from _json_lines(path, torn_is_none)
    else:
        raise DataError(f"{path}: unknown kind of file; give one of {', '.join(FILE_KINDS)}")


def row_count(path: Path) -> int:
    """Count the rows of `raw_rows`, without reading them where the kind of file allows it.

    Raises:
        DataError: as `raw_rows`.
    """
    if path.suffix == ".parquet":
        return count_rows(path)
    if not path.name.endswith((".jsonl", ".jsonl.gz")):
        return sum(1 for _ in raw_rows(path))
    with _opened(path) as file:
        return sum(not line.isspace() for line in file)


def place(path: Path, number: int) -> str:
    """Name the place of a row, to open an error message with."""
    return f"{path}: {'line' if path.name.endswith(('.jsonl', '.jsonl.gz')) else 'row'} {number}"


def _json_lines(path: Path, torn_is_none: bool = False) -> Iterator[tuple[int, Any]]:
    number = 0
    try:
        with _opened(path) as file:
            while line := file.readline():
                number += 1
                if line.strip():
                    row = _parsed(line, torn_is_none, f"{path}: line {number}")
                    line = b""  # neither the line nor the row is held while the caller works: each may have 189 MB
                    yield number, row
                    row = None
    except (gzip.BadGzipFile, EOFError) as error:
        raise DataError(f"{path}: after line {number}: is not a whole gzip file ({error}); fetch it again") from None


def _parsed(line: bytes, torn_is_none: bool, where: str) -> Any:
    try:
        return _loaded(line)
    except (ValueError, RecursionError) as error:
        if torn_is_none:
            return None
        why = f"{error.msg} at character {error.pos}" if isinstance(error, json.JSONDecodeError) else str(error)
        raise DataError(f"{where}: is not JSON ({why}); mend or delete the line") from None


def _loaded(content: bytes) -> Any:
    """Parse JSON; a lone surrogate, which nothing downstream could write, is replaced (storable.py)."""
    value = json.loads(content)
    return storable(value) if _HALF.search(content) else value


def _json_rows(path: Path) -> Iterator[tuple[int, Any]]:
    """Yield the rows of a JSON array, or of JSON lines under the name .json."""
    try:
        with _opened(path) as file:
            start = file.read(4096)
            rows = _loaded(start + file.read()) if start.lstrip()[:1] == b"[" else None
    except (gzip.BadGzipFile, EOFError) as error:
        raise DataError(f"{path}: is not a whole gzip file ({error}); fetch it again") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: is not JSON ({error}); fetch it again") from None
    yield from _json_lines(path) if rows is None else enumerate(rows, start=1)


def _csv_rows(path: Path) -> Iterator[tuple[int, Any]]:
    """Yield the rows of a CSV file whose first line has the columns' names; an empty field is null."""
    number = 0
    try:
        # strict: else a quote that is never closed swallows the rest of the file as one field
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, strict=True)
            for number, row in enumerate(reader, start=1):
                if None in row or None in row.values():
                    raise DataError(
                        f"{path}: row {number} (line {reader.line_num}) has not the {len(reader.fieldnames or ())} "
                        "fields of the first line; quote fields that have a comma or a line break"
                    )
                yield number, {name: value for name, value in row.items() if value != ""}
    except csv.Error as error:
        raise DataError(f"{path}: after row {number}: is not CSV ({error}); mend its quotes") from None
    except UnicodeDecodeError:
        raise DataError(f"{path}: after row {number}: is not UTF-8; save it in that encoding") from None


def _opened(path: Path) -> IO[bytes]:
    return cast(IO[bytes], gzip.open(path, "rb")) if path.suffix == ".gz" else path.open("rb")


def _parquet_rows(path: Path) -> Iterator[tuple[int, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        # Without pre_buffer, which would fetch whole row groups; a buffer lets Arrow read a column chunk piece by
        # piece.
        with pq.ParquetFile(path, pre_buffer=False, buffer_size=2**20) as file:
            for group in range(file.num_row_groups):
                size = 1 if file.metadata.row_group(group).total_byte_size > _READ_BYTES else _MOST_ROWS
                batches = file.iter_batches(batch_size=size, row_groups=[group])
                while (rows := _next_rows(batches)) is not None:
                    if size == 1:
                        release_unused()
                    while rows:  # each row is handed out and forgotten
                        number += 1
                        yield number, rows.pop(0)
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f"{path}: cannot be read as Parquet ({str(error).splitlines()[0]}); fetch it again") from None


def _next_rows(batches: Iterator[Any]) -> list[Any] | None:
    """Return the next piece as Python objects; the Arrow copy is gone when this returns."""
    batch = next(batches, None)
    return None if batch is None else list(batch.to_pylist())


def release_unused() -> None:
    """Return what Arrow no longer uses to the system; by itself it keeps what a large row took."""
    import pyarrow as pa

    pa.default_memory_pool().release_unused()


def _arrow_rows(path: Path) -> Iterator[tuple[int, Any]]:
    """Yield the rows of an Arrow stream, as the `datasets` library saves one."""
    import pyarrow as pa

    number = 0
    try:
        with pa.memory_map(str(path)) as source, pa.ipc.open_stream(source) as reader:
            for batch in reader:
                for start in range(batch.num_rows):
                    number += 1
                    yield number, batch.slice(start, 1).to_pylist()[0]
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f"{path}: cannot be read as Arrow ({str(error).splitlines()[0]}); fetch it again") from None
