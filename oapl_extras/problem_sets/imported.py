"""Result of importing one foreign row: a problem and its reference solutions, or the reason why it is dropped.

Pure. Every importer is a function ``row, name, number -> Imported``. It raises `Dropped` for a row that is known to be
of no use (counted under the reason). It raises ValueError for a row of another shape than the set's (the import is
refused).
"""

import ast
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from oapl_core.problems.compressed_tests import Dropped as Dropped  # readers of rows name it here

Tests = list[dict[str, str]]
"""``{"input", "output"}`` as in tables.PROBLEMS."""

_FENCED = re.compile(r"\A\s*```[\w+-]*[ \t]*\n(.*?)\n?```\s*\Z", re.DOTALL)


@dataclass
class Imported:
    """One row of a foreign set as a problem."""

    problem: dict[str, Any]
    """The columns of tables.PROBLEMS that are known; `problem_set.checked` completes them."""
    solutions: tuple[str, ...] | None = None
    """Programs said to be correct, without fences; None: the set has none for any problem."""
    worked: str | None = None
    """The set's own worked answer to a maths problem, as a demonstration (`oapl problems --solutions`)."""
    readings: tuple[Tests, ...] = ()
    """Other things that ambiguous tests may mean; a reference solution decides (curation.py)."""


def text(row: Mapping[str, Any], *names: str) -> str:
    """Return the first of these columns that the row has, as text.

    Raises:
        ValueError: it has none of them.
        Dropped: it is empty.
    """
    value = column(row, *names)
    if value is None or not str(value).strip():
        raise Dropped(f"no {names[0]}")
    return str(value)


def column(row: Mapping[str, Any], *names: str) -> Any:
    """Return the value of the first of these columns that the row has. Raises ValueError if it has none of them."""
    for name in names:
        if name in row:
            return row[name]
    raise ValueError(f"there is no column `{names[0]}`")


def structure(row: dict[str, Any], name: str) -> Any:
    """Parse the text of this column, and take it out of the row, as it may be large. Raises as `parsed`, `column`."""
    value = column(row, name)
    del row[name]
    if value is None or value == "":
        raise Dropped("no tests")
    return parsed(value, "tests")


def optional_text(row: Mapping[str, Any], name: str) -> str | None:
    """Return the column as text; None where it is missing or empty."""
    value = row.get(name)
    return str(value) if value is not None and str(value).strip() else None


def parsed(value: Any, what: str) -> Any:
    """Parse JSON (or a Python literal, which some sets write instead); a value that is no text comes back unchanged.

    Raises:
        Dropped: it is neither.
    """
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except json.JSONDecodeError:
        pass
    except ValueError as error:  # Python refuses integers of more than 4300 digits
        raise Dropped(f"{what} hold a number that is too long") from error
    try:
        return ast.literal_eval(value)
    except (ValueError, SyntaxError, MemoryError, RecursionError) as error:
        raise Dropped(f"{what} are not JSON") from error


def solutions(row: Mapping[str, Any], name: str) -> tuple[str, ...] | None:
    """Return the programs from a list, a JSON list or one text, without fences; empty ones are left out. None: no such
    column.
    """
    if name not in row:
        return None
    value = row[name]
    if isinstance(value, str) and value.lstrip().startswith("["):
        value = parsed(value, "solutions")
    programs = [value] if isinstance(value, str) else list(value or ())
    return tuple(_FENCED.sub(r"\1", source) for source in programs if isinstance(source, str) and source.strip())
