"""Output for a person in the terminal: progress lines and one-line errors."""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.status import Status
from rich.table import Table

from oapl_core.storable import printable


class _Console(Console):
    """Shows text as text: an id, a setting or an answer cannot move the cursor or name the window.

    Every table, panel and line of every command passes here, so none has to think of it.
    """

    as_json = False
    """Whether `oapl --json` was asked for."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render as rich does, whose own control of the cursor has a mark of its own."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text))


console = _Console(highlight=False)
errors = _Console(stderr=True, highlight=False)


def tell(text: str) -> None:
    """Print one line as it is: no markup, no hard line breaks (a path stays a path)."""
    console.print(text, markup=False, soft_wrap=True)


def print_json(facts: Callable[[], Mapping[str, Any]]) -> bool:
    """Print the facts as one JSON object where `oapl --json` asks for it; tell whether it does."""
    if console.as_json:
        console.print_json(data=facts(), default=str)
    return console.as_json


def numbers_table(*columns: str, text: Sequence[str] = (), **attributes: Any) -> Table:
    """Make a plain table whose columns are right-aligned, but for the first one and those in ``text``."""
    table = Table(*columns, box=None, **attributes)
    for column in table.columns[1:]:
        column.justify = "left" if column.header in text else "right"
    return table


class Narrator(logging.Handler):
    """Shows progress lines with the time since the start and the step of the plan.

    On a terminal the newest line of a step replaces the one before it; elsewhere (a log, CI) each line is printed.
    """

    def __init__(self, titles: Sequence[str]) -> None:
        """``titles``: of the plan's steps, in order."""
        super().__init__(logging.INFO)
        self._titles = list(titles)
        self._start = time.monotonic()
        self._step = ""
        # a log file or CI has no cursor to move: there every line is printed
        self._status: Status | None = console.status("starting Prefect") if console.is_terminal else None
        if self._status:
            self._status.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Show one line; ``<title>: starting`` begins a step."""
        text = record.getMessage()
        title = text.removesuffix(": starting")
        begins = title != text and title in self._titles
        if begins:
            self._step = f"step {self._titles.index(title) + 1}/{len(self._titles)}"
        minutes, seconds = divmod(int(time.monotonic() - self._start), 60)
        line = f"{minutes:3d}:{seconds:02d}  {self._step:<10}  {text}"
        if self._status and not begins:
            self._status.update(line)
        if begins or not self._status or _is_last(text):
            tell(line)

    def close(self) -> None:
        """Take the live line away."""
        if self._status:
            self._status.stop()
        super().close()


def _is_last(text: str) -> bool:
    """Tell whether a line is progress with nothing left to do (``600/600 rollouts``), or a plain message."""
    # "300/600 rollouts | 40 tok/s": any part may be the count, the first one that is decides
    for part in text.split(" | "):
        done, slash, total = part.split(" ")[0].partition("/")
        if slash and done.isdigit() and total.isdigit():
            return done == total
    return True
