"""Raw rows of a foreign data set, one by one: Parquet, JSON lines (also gzipped), or a folder of such files."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from oapl_core.errors import DataError
from oapl_core.tables import readable

_SUFFIXES = (".parquet", ".jsonl", ".jsonl.gz")
_ROWS_PER_READ = 64


def source_files(source: Path) -> list[Path]:
    """The files of ``source``, by name.

    Raises:
        DataError: it is missing, or there is nothing that can be read.
    """
    found = sorted(source.iterdir()) if source.is_dir() else [source]
    files = [path for path in found if path.name.endswith(_SUFFIXES)]
    if not source.exists():
        raise DataError(f"{source}: is missing; give a file or a folder")
    if not files:
        raise DataError(f"{source}: has no {', '.join(_SUFFIXES)}; convert the data set to one of them")
    return files


def raw_rows(files: list[Path]) -> Iterator[Any]:
    """Every row as plain Python values; None for a line that is not JSON. Memory holds 64 rows, or one line.

    Raises:
        DataError: a file cannot be read as what its name says.
    """
    for path in files:
        if path.suffix == ".parquet":
            yield from _parquet(path)
        else:
            with _opened(path) as file:
                yield from (_parsed(line) for line in file if line.strip())


def _parquet(path: Path) -> Iterator[Any]:
    import pyarrow.parquet as pq

    with readable(path), pq.ParquetFile(path, pre_buffer=False) as file:
        for group in range(file.num_row_groups):
            for batch in file.iter_batches(_ROWS_PER_READ, row_groups=[group]):
                yield from batch.to_pylist()


def _opened(path: Path) -> IO[bytes]:
    return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")  # type: ignore[return-value]


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None
