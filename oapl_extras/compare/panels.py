"""Figures that set runs side by side, as PNG files: panels of curves, and rows of means with their intervals.

Reads plain numbers, writes one PNG for each call. Colours, style and the figure itself are reports/drawing.py's.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from oapl_core.reports.drawing import COLOURS, MARKERS, Curve, drawing, fit_percent, log2, thousands

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_DASHES = ("solid", (0, (5, 2)), (0, (1, 1.3)), (0, (6, 1.5, 1, 1.5)))


@dataclass(frozen=True)
class Line(Curve):
    """A curve of one of several panels; equal labels look the same in each."""

    style: int = 0
    """Colour and marker, counted from 0."""
    dash: int = 0
    """Index of the dash pattern; 0 is solid."""
    bars: bool = False
    """Intervals as bars at the points; else as a band."""
    look: Literal["dots", "plain", "rings"] = "dots"
    """`dots`: a marker at each point. `plain`: single steps, with few markers and a gap where a round begins. `rings`:
    hollow markers alone, without a place in the legend."""


@dataclass(frozen=True)
class Panel:
    """One set of axes with its lines; several of them make a figure."""

    title: str
    x_label: str
    y_label: str
    lines: Sequence[Line]
    is_percent: bool = True
    """y are shares, shown in percent; else other numbers."""
    is_log2: bool = False
    """x on a logarithmic axis with ticks at powers of two."""
    starts: Sequence[float] = ()
    """x where a round begins."""


def draw_panels(path: Path, panels: Sequence[Panel]) -> None:
    """Draw one panel over the whole width, or several in two columns, with one legend below them."""
    # one panel alone is as wide as a page; two in a row are read side by side
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    size = (7.4, 4.6) if columns == 1 else (9.0, 3.1 * rows + 0.7)
    with drawing(path, *size, rows, columns) as (figure, axes_of_panels):
        # one legend for all panels: a label looks the same in each
        legend: dict[str, Any] = {}
        has_several = len({line.label for panel in panels for line in panel.lines}) > 1
        for axes, panel in zip(axes_of_panels, panels, strict=False):
            for line in _broken(panel):
                handle = _draw_line(axes, line, 100 if panel.is_percent else 1, has_several)
                # rings belong to the line of their label, which the legend has already
                if line.look != "rings":
                    legend.setdefault(line.label, handle)
            _finish(axes, panel)
        _same_limits(axes_of_panels, panels)
        for axes in axes_of_panels[len(panels) :]:
            axes.set_axis_off()
        # long labels in four columns would be wider than the figure, which then shrinks its panels
        ncols = 4 if max(map(len, legend), default=0) < 20 else 2
        figure.legend(legend.values(), legend.keys(), loc="outside lower center", ncols=ncols, handlelength=3)


def _broken(panel: Panel) -> Iterator[Line]:
    """Yield the lines of a panel, with their gaps."""
    for line in panel.lines:
        if line.look != "plain":
            yield line
            continue
        rows = list(zip(line.x, line.y, line.low, line.high, strict=True))
        # NaN is where matplotlib lifts its pen; half a step lies between the rounds' steps
        gaps = [(start + 0.5, *[float("nan")] * 3) for start in panel.starts if rows[0][0] <= start < rows[-1][0]]
        x, y, low, high = zip(*sorted(rows + gaps), strict=True)
        yield replace(line, x=x, y=y, low=low, high=high)


def colour_and_marker(style: int) -> tuple[str, str]:
    """Return what tells ``style`` from others: 0 is the base's grey; then no two of the next 56 are alike."""
    others = COLOURS[1:]
    return COLOURS[0] if style == 0 else others[(style - 1) % len(others)], MARKERS[style % len(MARKERS)]


def _draw_line(axes: "Axes", line: Line, scale: float, has_several: bool) -> Any:
    """Draw the curve and its interval; return what the legend shows. One line alone needs no markers to be known."""
    colour, marker = colour_and_marker(line.style)
    y, low, high = ([scale * value for value in values] for values in (line.y, line.low, line.high))
    look: dict[str, Any] = {"color": colour, "marker": marker, "markersize": 5, "linewidth": 1.6}
    look["linestyle"] = _DASHES[line.dash % len(_DASHES)]
    if line.look == "plain":
        look |= {"markevery": 0.2} if has_several else {"marker": ""}  # 0.2 of the diagonal apart
    if line.look == "rings":
        look |= {"linestyle": "none", "markersize": 8, "markerfacecolor": "white", "markeredgewidth": 1.6, "zorder": 3}
    if line.bars:
        # errorbar wants lengths, not ends; abs() because a mean over seeds may round past its range
        below, above = ([abs(a - b) for a, b in zip(y, end, strict=True)] for end in (low, high))
        return axes.errorbar(line.x, y, yerr=[below, above], capsize=3, elinewidth=1, **look)
    axes.fill_between(line.x, low, high, color=colour, alpha=0.15, linewidth=0)
    return axes.plot(line.x, y, **look)[0]


def _finish(axes: "Axes", panel: Panel) -> None:
    for start in panel.starts:
        # below everything, so that a line drawn on a round's first step stays visible
        axes.axvline(start, color="#8a929d", linewidth=0.9, linestyle=(0, (2, 3)), zorder=0)
    if panel.is_log2:
        log2(axes, max((x for line in panel.lines for x in line.x), default=1))
    else:
        axes.xaxis.set_major_formatter(thousands)
        axes.locator_params(axis="x", integer=True, nbins=6)
    if panel.is_percent:
        fit_percent(axes)
    else:
        # from 0, where a policy always gives the same answer; rewards may be less
        axes.set_ylim(bottom=min([0.0, *(low for line in panel.lines for low in line.low)]))
    axes.set_title(panel.title)
    axes.set_xlabel(panel.x_label)
    axes.set_ylabel(panel.y_label)


def _same_limits(axes_of_panels: "Sequence[Axes]", panels: Sequence[Panel]) -> None:
    """Make panels with the same x, or the same y, show the same part of it."""
    pairs = list(zip(axes_of_panels, panels, strict=False))
    for axis in ("x", "y"):
        for name in {getattr(panel, f"{axis}_label") for panel in panels}:
            mine = [axes for axes, panel in pairs if getattr(panel, f"{axis}_label") == name]
            # by hand: sharex and sharey would share ticks and hide tick labels, too
            ends = [end for axes in mine for end in getattr(axes, f"get_{axis}lim")()]
            for axes in mine:
                axes.set(**{f"{axis}lim": (min(ends), max(ends))})


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
    """Draw one row for each bar, the first on top: a dot with its interval, small circles for the seeds."""
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
        # upside down, as in the table: the first on top; 0.4 leaves room for the seeds' circles
        axes.set_ylim(len(bars) - 0.4, -0.6)
        axes.grid(axis="y", visible=False)
        axes.set_xlabel(x_label)
