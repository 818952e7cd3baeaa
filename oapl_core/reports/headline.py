"""The headline for the terminal: the pass rates that also open the report, and the sentences about them. Reads only."""

from typing import TYPE_CHECKING

from oapl_core.reports.results import conclusions, heldout_table, results
from oapl_core.run_folder.run import Run
from oapl_core.run_folder.run_record import RunRecord

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table as RichTable

    from oapl_core.reports.blocks import Table


def headline_table(run: Run) -> "RichTable":
    """Pass rates as a Rich table, narrow enough for 80 columns; it says so if there is nothing to show yet.

    Raises:
        DataError: a file of the run is broken.
    """
    from rich.table import Table as RichTable
    from rich.text import Text

    measured = results(RunRecord(run))
    if measured is None:
        return RichTable(title=Text("Held-out problems: not measured yet"), title_justify="left", box=None)
    shown = heldout_table(measured)
    # counts and shares of faults are left to the page: they do not fit beside the rates
    rates = [i for i, name in enumerate(shown.columns) if i == 0 or "%" in name or "pass@" in name]
    return as_rich(shown, rates, "\n".join(conclusions(measured)))


def as_rich(shown: "Table", columns: "Sequence[int]", caption: str = "") -> "RichTable":
    """Some columns of a report's table as a Rich table."""
    from rich.table import Table as RichTable
    from rich.text import Text

    rich = RichTable(
        title=Text(shown.title), title_justify="left", caption=Text(caption), caption_justify="left", box=None
    )
    for i in columns:
        rich.add_column(Text(shown.columns[i]), justify="right" if shown.numeric[i] else "left", no_wrap=True)
    for row in shown.rows:
        rich.add_row(*(Text(row[i]) for i in columns))
    return rich
