"""Search in a corpus on disk: `search(query)` and `read(page)`, on SQLite's full-text index (FTS5, BM25).

Reads a corpus that ``index`` made; the standard library's SQLite is all it needs. The corpus is opened read-only, by
each thread for itself, and is never in memory as a whole.

    python -m oapl_core.environments.search pages.jsonl pages.sqlite     # rows of `title` and `text`
"""

import json
import re
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from oapl_core.environments.protocol import ToolError
from oapl_core.environments.tools import ToolEnvironment
from oapl_core.errors import ConfigError, DataError
from oapl_core.storable import storable_text

_WORDS = re.compile(r"\w+")
_MOST_WORDS = 32
_open = threading.local()


class Search(ToolEnvironment):
    """Two tools, `search` and `read`."""

    def __init__(self, corpus: str, results: int = 5, snippet_words: int = 32, page_characters: int = 4000) -> None:
        """Prepare to search ``corpus``, which ``index`` wrote; ``results`` of a search, with so many words of each
        page.

        Raises:
            ConfigError: there is no such corpus.
        """
        self._corpus, self._results = str(Path(corpus).absolute()), results
        self._words, self._characters = min(snippet_words, 64), page_characters
        try:
            count = self._rows("SELECT count(*) FROM pages", ())[0][0]
        except sqlite3.Error as error:
            raise ConfigError(
                f"{corpus}: is no corpus ({error}); make one with `python -m oapl_core.environments.search PAGES.jsonl "
                f"{corpus}`"
            ) from None
        if not count:
            raise ConfigError(f"{corpus}: has no pages")

    def tools(self) -> Sequence[Callable[..., str]]:
        """Offer both tools: search and read."""
        return [self.search, self.read]

    def search(self, query: str) -> str:
        """Searches the corpus for pages with the words of a query, the best first.

        Args:
            query: A few words.

        Returns:
            Number, title and an excerpt of each page.
        """
        # each word quoted: FTS5 has a syntax of its own, of which a model's words may be a wrong use
        words = [f'"{word}"' for word in dict.fromkeys(_WORDS.findall(query.lower()))][:_MOST_WORDS]
        if not words:
            raise ToolError("the query has no words")
        rows = self._rows(
            "SELECT rowid, title, snippet(pages, 1, '', '', ' ... ', ?) FROM pages WHERE pages MATCH ? "
            "ORDER BY bm25(pages), rowid LIMIT ?",
            (self._words, " OR ".join(words), self._results),
        )
        shown = [f"[{number}] {title}\n{' '.join(excerpt.split())}" for number, title, excerpt in rows]
        return "\n\n".join(shown) or "nothing was found"

    def read(self, page: int) -> str:
        """Reads a page that a search has found.

        Args:
            page: Its number.

        Returns:
            Title and text.
        """
        try:
            rows = self._rows("SELECT title, text FROM pages WHERE rowid = ?", (int(page),))
        except (TypeError, ValueError, OverflowError):
            raise ToolError("the page must be a number, as a search gives it") from None
        if not rows:
            raise ToolError(f"there is no page {page}")
        title, text = rows[0]
        return f"{title}\n{text[: self._characters]}"

    def _rows(self, query: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        known: dict[str, sqlite3.Connection] = _open.__dict__.setdefault("corpora", {})
        if self._corpus not in known:
            known[self._corpus] = sqlite3.connect(f"{Path(self._corpus).as_uri()}?mode=ro&immutable=1", uri=True)
        return known[self._corpus].execute(query, values).fetchall()


def index(pages: Iterable[Any], to: Path) -> int:
    """Write a corpus of ``pages`` (`title` and `text`); returns how many there are.

    Raises:
        DataError: a page has no text.
    """
    unfinished = to.with_name(f".tmp-{to.name}")
    unfinished.unlink(missing_ok=True)
    connection = sqlite3.connect(unfinished)
    with connection:
        connection.execute("CREATE VIRTUAL TABLE pages USING fts5(title, text, tokenize = 'porter unicode61')")
        written = connection.executemany("INSERT INTO pages (title, text) VALUES (?, ?)", _checked(pages)).rowcount
        connection.execute("INSERT INTO pages (pages) VALUES ('optimize')")
    connection.close()
    unfinished.rename(to)
    return written


def _checked(pages: Iterable[Any]) -> Iterator[tuple[str, str]]:
    for number, page in enumerate(pages, start=1):
        if not isinstance(page, Mapping) or not isinstance(page.get("text"), str):
            raise DataError(f"page {number}: has no `text`; a page is an object with `title` and `text`")
        # half of an emoji, which SQLite does not take, is replaced
        yield storable_text(str(page.get("title") or "")), storable_text(page["text"])


def _lines(path: Path) -> Iterator[Any]:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                yield json.loads(line)
            except (ValueError, RecursionError) as error:  # also bytes that are no UTF-8, and numbers without end
                raise DataError(f"{path}:{number}: is not JSON ({error}); mend or delete the line") from None


def main(arguments: Sequence[str]) -> int:
    """Run the command line: a JSONL file and the corpus to write."""
    if len(arguments) != 2 or not Path(arguments[0]).is_file():
        sys.stderr.write("give a JSONL file of pages (`title`, `text`) and the corpus to write\n")
        return 2
    try:
        count = index(_lines(Path(arguments[0])), Path(arguments[1]))
    except DataError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    sys.stdout.write(f"{arguments[1]}: {count:,} pages\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
