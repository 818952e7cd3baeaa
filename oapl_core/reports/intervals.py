"""A figure of many means with their intervals, one below the other: easier to compare than as many curves.

Writes one PNG; the drawing itself is figures.py's.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from oapl_core.reports.figures import COLOURS, drawing


@dataclass(frozen=True)
class Bar:
    """A mean in percent of 1 with its interval, and the means of the seeds behind it."""

    label: str
    mean: float
    low: float
    high: float
    seeds: Sequence[float] = ()
    is_reference: bool = False
    """Drawn in another colour, with a line through all rows."""


def draw_intervals(path: Path, bars: Sequence[Bar], x_label: str) -> None:
    """One row for each bar, the first on top: a dot with its interval, small circles for the seeds."""
    with drawing(path, 7.4, 1.2 + 0.3 * len(bars)) as (_, (axes,)):
        for row, bar in enumerate(bars):
            colour, marker = (COLOURS[2], "s") if bar.is_reference else (COLOURS[1], "o")
            reach = [[100 * (bar.mean - bar.low)], [100 * (bar.high - bar.mean)]]
            axes.errorbar([100 * bar.mean], [row], xerr=reach, color=colour, marker=marker, markersize=5, capsize=3)
            axes.plot(
                [100 * seed for seed in bar.seeds],
                [row + 0.25] * len(bar.seeds),
                linestyle="none",
                marker="o",
                markersize=3,
                markerfacecolor="white",
                markeredgecolor=colour,
            )
            if bar.is_reference:
                axes.axvline(100 * bar.mean, color=colour, linewidth=0.9, linestyle=(0, (2, 3)), zorder=0)
        axes.set_yticks(range(len(bars)), [bar.label for bar in bars])
        axes.set_ylim(len(bars) - 0.4, -0.6)
        axes.grid(axis="y", visible=False)
        axes.set_xlabel(x_label)
