"""The page of columns: names and types from the schemas, meanings from data/columns.toml."""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from oapl_core import tables
from oapl_core.run_folder.draws import DRAWS

Fields = Sequence[tuple[str, str]]
MEANINGS = Path(__file__).parents[2] / "data" / "columns.toml"
TABLES: Mapping[str, Fields] = {
    "problems": tables.PROBLEMS,
    "prompts": tables.PROMPTS,
    "draws": DRAWS,
    "rollouts": tables.ROLLOUTS,
    "verdicts": tables.VERDICTS,
    "audits": tables.AUDITS,
    "groups": tables.GROUPS,
    "references": tables.REFERENCES,
    "mismatches": tables.MISMATCHES,
    "evaluations": tables.EVALUATIONS,
}
"""Schemas, in the order of a round."""
HEAD = """\
# Columns

Every table of a run, column by column, made from the schemas in `oapl_core/tables.py`. Where the files lie, and what
they are for: [files of a run](../data/README.md). Types are Arrow's; a `list<int32>` has one entry per token. Times are
UTC.
"""


def columns_page() -> str:
    """Return the page in Markdown. Raises ValueError for a column without a meaning, or a meaning of no column."""
    meanings = tomllib.loads(MEANINGS.read_text("utf-8"))
    if wrong := set(_differing(meanings)):
        raise ValueError(f"data/columns.toml and the schemas differ by {sorted(wrong)}")
    return HEAD + "".join(_section(name, fields, meanings[name]) for name, fields in TABLES.items())


def _differing(meanings: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Names of columns that only one of the two has."""
    for name in TABLES.keys() | meanings.keys():
        both = {column for column, _ in TABLES.get(name, ())} ^ meanings.get(name, {}).keys()
        yield from (f"{name}.{column}" for column in both)


def _section(name: str, fields: Fields, meanings: Mapping[str, Mapping[str, str]]) -> str:
    """Heading and table of one schema."""
    types = [type_name(field.type) for field in tables.schema_of(fields)]
    rows = [_row(column, kind, **meanings[column]) for (column, _), kind in zip(fields, types, strict=True)]
    head = "| column | type | unit | meaning | null |\n|---|---|---|---|---|\n"
    return f"\n## {name.capitalize()}\n\n{head}" + "".join(rows)


def _row(column: str, kind: str, *, meaning: str, unit: str = "", null: str = "never") -> str:
    cells = (f"`{column}`", kind.replace("<", "&lt;"), unit, *(one.replace("<", "&lt;") for one in (meaning, null)))
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n"


def type_name(kind: Any) -> str:
    """Name an Arrow type; of lists and structs the parts that a reader asks for."""
    import pyarrow as pa

    if pa.types.is_struct(kind):
        return f"struct<{', '.join(field.name for field in kind)}>"
    return f"list<{type_name(kind.value_type)}>" if pa.types.is_list(kind) else str(kind)
