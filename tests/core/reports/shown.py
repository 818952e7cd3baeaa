"""Tables of a page of Markdown, as a reader sees them."""

from typing import NamedTuple

from markdown_it import MarkdownIt


class Shown(NamedTuple):
    """One table."""

    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]


def tables_of(markdown: str) -> dict[str, Shown]:
    """The last heading before a table -> the table."""
    found: dict[str, Shown] = {}
    lines: list[list[str]] = []
    heading, kind = "", ""
    for token in MarkdownIt("commonmark").enable("table").parse(markdown):
        kind = token.type if token.type.endswith("_open") else kind
        if token.type == "tr_open":
            lines.append([])
        elif token.type == "inline":
            text = "".join(child.content for child in token.children or ())
            if kind == "heading_open":
                heading = text
            elif kind in ("th_open", "td_open"):
                lines[-1].append(text)
        elif token.type == "table_close":
            columns, *rows = map(tuple, lines)
            found[heading], lines = Shown(columns, rows), []
    return found
