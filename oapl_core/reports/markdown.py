"""A Report as Markdown. Model text stands in fences that it cannot close. Reads figures only to embed them."""

import base64
import re
from collections.abc import Iterator
from pathlib import Path

from oapl_core.reports.blocks import Report, Sample, Section, Table
from oapl_core.storable import printable

_PICTURE = re.compile(r"^(!\[.*\])\(([\w.-]+\.png)\)$", re.MULTILINE)
_MARKUP = re.compile(r"([\\`*_\[\]<>|#])")


def markdown(report: Report) -> str:
    """Write the whole report as GitHub-flavoured Markdown."""
    blocks = [f"# {plain(report.title)}", plain(report.subtitle), *map(plain, report.conclusions)]
    if report.missing:
        items = "\n".join(f"- {plain(item)}" for item in report.missing)
        blocks += [f"**{plain(report.unfinished)}** Missing so far:", items]
    for section in report.sections:
        blocks += _section(section)
    return "\n\n".join(blocks) + "\n"


def with_pictures(text: str, folder: Path) -> str:
    """Markdown whose figures, PNGs in ``folder``, stand in the text itself, for where no folder is at hand."""

    def embedded(link: re.Match[str]) -> str:
        path = folder / link[2]
        if not path.is_file():  # a section may be shown without its figures
            return link[0]
        return f"{link[1]}(data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()})"

    return _PICTURE.sub(embedded, text)


def plain(text: str) -> str:
    """Put ``text`` on one line, without any meaning as Markdown."""
    return _MARKUP.sub(r"\\\1", " ".join(printable(text).split()))


def fenced(text: str) -> str:
    """Put ``text`` in a fence longer than any run of backticks in it."""
    fence = "`" * max(3, 1 + max(map(len, re.findall(r"`+", text)), default=0))
    return f"{fence}text\n{printable(text)}\n{fence}"


def _section(section: Section) -> Iterator[str]:
    yield f"## {plain(section.title)}"
    yield from map(plain, section.text)
    for table in section.tables:
        yield f"**{plain(table.title)}**"
        yield _table(table)
        if table.note:
            yield plain(table.note)
    for picture in section.pictures:
        yield f"![{plain(picture.alt)}]({picture.file})"
        yield plain(picture.caption)
    if section.links:
        yield "\n".join(f"- [{plain(link.text)}]({link.file})" for link in section.links)
    for sample in section.samples:
        yield from _sample(sample)


def _table(table: Table) -> str:
    lines = [table.columns, tuple("---:" if numeric else "---" for numeric in table.numeric)]
    rows = [tuple(plain(cell) for cell in row) for row in table.rows]
    # Markdown has no marked row
    bold = [tuple(f"**{cell}**" for cell in row) if i == table.marked else row for i, row in enumerate(rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in [*lines, *bold])


def _sample(sample: Sample) -> Iterator[str]:
    yield f"### {plain(sample.problem)}"
    yield "Prompt:"
    yield fenced(sample.prompt)
    for answer in sample.answers:
        yield f"{plain(answer.checkpoint)} ({plain(answer.outcome)}):"
        yield fenced(answer.text)
