"""The page of all settings, from the JSON schema of their classes: key, values, default, meaning."""

import json
import re
from collections.abc import Iterator
from typing import Any

from oapl_core import plugins
from oapl_core.objectives import Method, shipped
from oapl_core.settings.experiment import Experiment
from oapl_core.settings.rows import sources
from oapl_extras.compare.settings import ComparisonConfig

Schema = dict[str, Any]
_MARKS = {
    "changesNothing": "*Changes no number.*",
    "mayChange": "*May be another each time an unfinished run is continued.*",
}
"""Words about a setting, by the mark in its schema."""
_ROW = re.compile(r"\| `(?P<key>\w+)`\{#(?P<path>[^}]+)\} \|.*\| (?P<meaning>[^|]*) \|$")
HEAD = """\
# Settings

Everything that an experiment file may say; it needs only what differs from the defaults. On the command line
`oapl run FILE training.learning_rate=1e-5` changes one. Where no other source is named, defaults are those of the OAPL
paper's DeepCoder experiment (arXiv 2602.19362, appendix A); [the paper's numbers beside these](paper.md).

*Unset* is the default of what may be left out altogether. A key of another name, or a value of another kind, is an
error that names it.
"""
OBJECTIVES = """
## Objectives

`[objective]` has a `name` and the keys of that objective. Equations, sources and tests: [objectives.md](objectives.md).
"""
OPTIONS = """
## Options of any objective {#objective-options}

Keys that `[objective]` may have besides its own ([masks](objectives.md#masks)).
"""
ROWS = """
## Rows of a round {#rows}

`rows` of a round is `sampled` or a table with the keys of one of these sources.
"""
COMPARISON = "\n## A comparison file\n\nFor [`oapl compare`](cli.md#oapl-compare).\n"
BOUNDS = {
    "minimum": "at least",
    "exclusiveMinimum": "more than",
    "maximum": "at most",
    "exclusiveMaximum": "less than",
    "minItems": "at least",
}
NOUNS = {"integer": "integer", "number": "number", "boolean": "`true` or `false`", "string": "text", "object": "table"}


def settings_page() -> str:
    """The page in Markdown."""
    return HEAD + "".join([*_section(Experiment), COMPARISON, *_section(ComparisonConfig, "comparison-")])


def _section(model: type[Experiment] | type[ComparisonConfig], prefix: str = "") -> Iterator[str]:
    """The table of a file's own keys, then one for each table that the file may have."""
    schema = model.model_json_schema()
    groups = schema["$defs"]
    yield "\n## An experiment file\n" if model is Experiment else ""
    yield _table(schema, prefix)
    for path, is_list, group in _groups(schema, groups):
        yield f"\n### `{'[[' if is_list else '['}{path}{']]' if is_list else ']'}` {{#{prefix}{path}}}\n"
        yield f"\n{_text(groups[group])}\n{_table(groups[group], f'{prefix}{path}.')}"
    if model is Experiment:
        yield OBJECTIVES
        for name, kind in sorted(shipped().items()):
            objective = kind.model_json_schema()
            yield f"\n### `{name}` {{#objective.{name}}}\n\n{_text(objective)}\n"
            yield _table(objective, f"objective.{name}.")
        yield from _options()
        yield ROWS
        for source in sources():
            described = source.model_json_schema()
            name = next(iter(described["properties"]))
            yield f"\n### `{name}` {{#rows.{name}}}\n\n{_text(described)}\n{_table(described, 'rounds.rows.')}"


def _options() -> Iterator[str]:
    """The keys that any objective may have, and the tables that they hold."""
    yield OPTIONS
    for name in plugins.BUILT_IN["objective_option"]:
        schema = plugins.resolve("objective_option", name)(Method).model_json_schema()
        own = {"properties": {key: x for key, x in schema["properties"].items() if key not in Method.model_fields}}
        yield _table(own, "objective.")
        for path, is_list, group in _groups(own, schema.get("$defs", {}), "objective."):
            heading = f"[[{path}]]" if is_list else f"[{path}]"
            groups = schema["$defs"]
            yield f"\n### `{heading}` {{#{path}}}\n\n{_text(groups[group])}\n{_table(groups[group], f'{path}.')}"


def _groups(schema: Schema, groups: dict[str, Schema], path: str = "") -> Iterator[tuple[str, bool, str]]:
    """Path, whether it is a list of tables, and class of every table below ``schema``, in the order of the file."""
    for key, field in schema["properties"].items():
        for name, is_list in _references(field):
            yield path + key, is_list, name
            yield from _groups(groups[name], groups, f"{path}{key}.")


def _references(field: Schema) -> list[tuple[str, bool]]:
    """The groups of settings that a key may hold, and whether it is a list of them; not what is chosen by name."""
    if "discriminator" in field:
        return []
    if "$ref" in field:
        return [(field["$ref"].rpartition("/")[2], False)]
    below = [found for choice in field.get("anyOf", []) for found in _references(choice)]
    return below + [(name, True) for name, _ in (_references(field["items"]) if "items" in field else [])]


def _table(schema: Schema, prefix: str) -> str:
    """The keys of one group."""
    # an objective's name is its heading
    fields = {key: field for key, field in schema["properties"].items() if "const" not in field}
    if not fields:
        return ""
    needed = schema.get("required", [])
    rows = []
    for key, field in fields.items():
        named = f"`{key}`{_anchor(field, prefix + key)}"
        marks = [word for key, word in _MARKS.items() if key in field]
        meaning = " ".join([_text(field), *marks])
        cells = (named, _values(field, prefix + key), _default(field, key in needed), meaning)
        rows.append(f"| {' | '.join(cells)} |\n")
    return "\n| key | values | default | meaning |\n|---|---|---|---|\n" + "".join(rows)


def _anchor(field: Schema, path: str) -> str:
    """Where links and the search find a key; one that is a table has its heading."""
    return "" if _references(field) or "discriminator" in field else f"{{#{path}}}"


def search_entries() -> list[dict[str, Any]]:
    """A result of the search for each key: who looks for a setting wants its meaning, not a page that uses it."""
    found = []
    for line in settings_page().splitlines():
        if row := _ROW.match(line):
            path, key, meaning = row["path"], row["key"], row["meaning"]
            table = path.removeprefix("comparison-").rpartition(".")[0]
            # in words, too: whoever does not know the key looks for these
            words = [f"[{table}]" if table else "", key, key.replace("_", " ") if "_" in key else ""]
            title = " ".join(word for word in words if word)
            found.append({"location": f"settings.html#{path}", "title": title, "text": meaning, "boost": 2})
    return found


def _text(schema: Schema) -> str:
    """A description on one line; a bar would end the table's cell, and `<` begin an element."""
    return " ".join(schema.get("description", "").split()).replace("|", "\\|").replace("<", "&lt;")


def _default(field: Schema, is_needed: bool) -> str:
    if is_needed:
        return "required"
    if _references(field) or "discriminator" in field or "default" not in field:
        return ""  # a table's defaults are those of its keys
    value = field["default"]
    return "unset" if value is None else f"`{json.dumps(value)}`"


def _values(field: Schema, path: str) -> str:
    """What a key takes, in words."""
    if "discriminator" in field:
        return {"rows": "`sampled`, or [table](#rows)"}.get(path.rpartition(".")[2], "[table](#objectives)")
    if "$ref" in field:
        return f"[table](#{path})"
    if "anyOf" in field:
        return " or ".join(dict.fromkeys(_values(one, path) for one in field["anyOf"] if one.get("type") != "null"))
    if "const" in field:
        return f"`{field['const']}`"
    if "enum" in field:
        return ", ".join(f"`{value}`" for value in field["enum"])
    if field.get("type") == "array":
        # a pair, such as Adam's betas, has its kinds one by one
        items = field["prefixItems"][0] if "prefixItems" in field else field.get("items", {})
        count = f"{len(field['prefixItems'])} times " if "prefixItems" in field else "list of "
        return count + _values(items, path)
    noun = "path" if field.get("format") == "path" else NOUNS[field["type"]]
    bounds = [f"{words} {field[key]}" for key, words in BOUNDS.items() if key in field]
    return f"{noun}, {' and '.join(bounds)}" if bounds else noun
