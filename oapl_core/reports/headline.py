"""The headline for the terminal: the table that also opens the report, and the sentences about it. Reads only."""

from typing import TYPE_CHECKING

from oapl_core.artifacts import Run
from oapl_core.reports.facts import gather
from oapl_core.reports.results import conclusions, heldout_table, results

if TYPE_CHECKING:
    from rich.table import Table as RichTable


def headline(run: Run) -> list[tuple[str, ...]]:
    """Rows of text, the first one the column names; empty if nothing held out was measured yet.

    Raises:
        DataError: a file of the run is broken.
    """
    found = results(gather(run))
    if found is None:
        return []
    shown = heldout_table(found)
    return [shown.columns, *shown.rows]


def headline_table(run: Run) -> "RichTable":
    """The same rows as a Rich table, with what they say as its caption; it says so if there is nothing to show yet.

    Raises:
        DataError: a file of the run is broken.
    """
    from rich.table import Table as RichTable
    from rich.text import Text

    found = results(gather(run))
    if found is None:
        return RichTable(title=Text("Held-out problems: not measured yet"), title_justify="left", box=None)
    shown = heldout_table(found)
    caption = Text("\n".join(conclusions(found)))
    rich = RichTable(title=Text(shown.title), title_justify="left", caption=caption, caption_justify="left", box=None)
    for name, numeric in zip(shown.columns, shown.numeric, strict=True):
        rich.add_column(Text(name), justify="right" if numeric else "left")
    for row in shown.rows:
        rich.add_row(*map(Text, row))
    return rich
