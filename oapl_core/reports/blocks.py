"""What a report is made of, before it is Markdown or HTML: tables, figures, sentences. Pure.

Numbers are turned into text here, so that the terminal, report.md and index.html always agree.
"""

from collections.abc import Sequence
from dataclasses import dataclass

DASH = "–"


@dataclass(frozen=True)
class Table:
    """A table of text; ``numeric`` are the columns that are aligned right, ``marked`` the row that stands out."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: tuple[bool, ...]
    note: str = ""
    marked: int | None = None

    def __post_init__(self) -> None:
        """Every row has every column."""
        widths = {len(self.columns), len(self.numeric), *map(len, self.rows)}
        assert len(widths) == 1, f"{self.title}: rows of {sorted(widths)} cells"


@dataclass(frozen=True)
class Picture:
    """A PNG beside the report: file name, what it shows in words, and its caption."""

    file: str
    alt: str
    caption: str


@dataclass(frozen=True)
class Answer:
    """What one checkpoint answered, and how that was judged."""

    checkpoint: str
    outcome: str
    text: str


@dataclass(frozen=True)
class Sample:
    """One held-out problem with an answer of each of two checkpoints."""

    problem: str
    prompt: str
    answers: tuple[Answer, ...]


@dataclass(frozen=True)
class Link:
    """Another page beside the report: file name and what it shows."""

    file: str
    text: str


@dataclass(frozen=True)
class Tile:
    """One large number."""

    label: str
    value: str
    detail: str


@dataclass(frozen=True)
class Section:
    """A heading with what belongs below it, in order: sentences, tables, pictures, links, samples."""

    title: str
    text: tuple[str, ...] = ()
    pictures: tuple[Picture, ...] = ()
    tables: tuple[Table, ...] = ()
    links: tuple[Link, ...] = ()
    samples: tuple[Sample, ...] = ()

    @property
    def anchor(self) -> str:
        """Link target."""
        return "-".join("".join(c if c.isalnum() else " " for c in self.title.lower()).split())


@dataclass(frozen=True)
class Report:
    """The whole report."""

    title: str
    subtitle: str
    conclusions: tuple[str, ...]
    tiles: tuple[Tile, ...]
    missing: tuple[str, ...]
    sections: tuple[Section, ...]
    unfinished: str = "This run is not finished."
    """What is said before ``missing``."""


def table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], note: str = "", marked: int | None = None
) -> Table:
    """A table whose columns are aligned right where their name ends in ``>`` (which is cut off)."""
    names = tuple(c.removesuffix(">") for c in columns)
    numeric = tuple(c.endswith(">") for c in columns)
    return Table(title, names, tuple(tuple(row) for row in rows), numeric, note, marked)


def percent(share: float | None, digits: int = 1) -> str:
    """``0.3125`` as ``31.2 %``; a dash for None."""
    return DASH if share is None else f"{100 * share:.{digits}f} %"


def interval(low: float, high: float) -> str:
    """Two shares as ``25.1 to 37.0 %``."""
    return f"{100 * low:.1f} to {100 * high:.1f} %"


def whole(number: float | None) -> str:
    """A count with thousands separated; a dash for None."""
    return DASH if number is None else f"{number:,.0f}"


def duration(seconds: float) -> str:
    """Seconds as ``4.2 s``, ``3 min 05 s`` or ``2 h 07 min``."""
    if round(seconds, 1) < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def printable(text: str) -> str:
    """``text`` with control characters and lone surrogates, which a model may write, made visible as ``\\x1b``."""
    safe = text.encode("utf-8", "backslashreplace").decode()
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in safe)


def shortened(text: str, characters: int = 4000) -> str:
    """The beginning of ``text``, and how much is left out."""
    left = len(text) - characters
    return text if left <= 0 else f"{text[:characters]}\n… ({left:,} more characters)"
