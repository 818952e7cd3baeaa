"""Reads the rows of a file as they are: .jsonl, also .gz, here; the other kinds in ``row_files.py``. Writes nothing.

Rows are read one at a time. A single problem of LiveCodeBench has 189 MB of tests, so nothing here holds a row that it
has handed out.
"""

import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, cast

from oapl_core import plugins
from oapl_core.errors import DataError
from oapl_core.settings.problems import FILE_KINDS
from oapl_core.storable import storable

_HALF = re.compile(rb"\\u[dD][89a-fA-F]|\xed[\xa0-\xbf]")
"""May be a lone surrogate, escaped or as it is: rows without it need not be looked at text by text."""


def raw_rows(path: Path, torn_is_none: bool = False) -> Iterator[tuple[int, Any]]:
    """Yield (number counted from 1, row) of every row; empty lines are skipped.

    With ``torn_is_none`` a line that is not JSON is the row None; else it is an error.

    Raises:
        DataError: the file cannot be read; one line with file, place and remedy.
    """
    if not path.is_file():
        raise DataError(f"{path}: there is no such file")
    if is_lines(path):
        yield from json_lines(path, torn_is_none)
        return
    kind = next((kind for kind in FILE_KINDS if path.name.endswith(kind)), None)
    if kind is None:
        raise DataError(f"{path}: unknown kind of file; give one of {', '.join(FILE_KINDS)}")
    # by name: a run whose problem sets are JSON lines loads no reader of another kind
    yield from plugins.resolve("row_file", kind)(path)


def is_lines(path: Path) -> bool:
    """Tell whether a file is named as one of JSON lines."""
    return path.name.endswith((".jsonl", ".jsonl.gz"))


def place(path: Path, number: int) -> str:
    """Name the place of a row, to open an error message with."""
    return f"{path}: {'line' if is_lines(path) else 'row'} {number}"


def json_lines(path: Path, torn_is_none: bool = False) -> Iterator[tuple[int, Any]]:
    """Yield the rows of JSON lines, whatever the file is named; raises as ``raw_rows``."""
    number = 0
    try:
        with opened(path) as file:
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
        return loaded(line)
    except (ValueError, RecursionError) as error:
        if torn_is_none:
            return None
        why = f"{error.msg} at character {error.pos}" if isinstance(error, json.JSONDecodeError) else str(error)
        raise DataError(f"{where}: is not JSON ({why}); mend or delete the line") from None


def loaded(content: bytes) -> Any:
    """Parse JSON; a lone surrogate, which nothing downstream could write, is replaced (storable.py)."""
    value = json.loads(content)
    return storable(value) if _HALF.search(content) else value


def opened(path: Path) -> IO[bytes]:
    """Open a file that may be packed by gzip."""
    return cast(IO[bytes], gzip.open(path, "rb")) if path.suffix == ".gz" else path.open("rb")
