"""Writes problem sets for people: .jsonl, .jsonl.gz or .parquet (columns of tables.PROBLEMS), whole or not at all.

Rows go to the disk one by one as JSON, since a single problem has up to 189 MB of tests.
"""

import gzip
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from oapl_core.errors import ConfigError
from oapl_core.files import fsync
from oapl_core.problems.storing import write_tables


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


def check_name(path: Path) -> None:
    """Raise ConfigError unless ``path`` is named as a file that can be written."""
    if not path.name.endswith((".jsonl", ".jsonl.gz", ".parquet")):
        raise ConfigError(f"{path}: name the file .jsonl, .jsonl.gz or .parquet")


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
