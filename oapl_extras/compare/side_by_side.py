"""The paper's figures for any number of runs: PNGs, the numbers behind them as CSV, and one page that shows them.

Writes index.html, pass_at_k, accuracy, entropy and samples (.png, .csv) and right_share.csv, as far as there is
something to draw. Runs with one label are drawn as their mean. ``write_figures`` takes tracks, so that what compares
objectives draws its arms with the same functions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from oapl_core.errors import ConfigError, DataError
from oapl_core.markdown import html, render
from oapl_core.reports.blocks import Table
from oapl_core.reports.compose import Figure
from oapl_core.run_folder.run_record import BASE
from oapl_extras.compare import entropies, series
from oapl_extras.compare.panels import Line, Panel, draw_panels
from oapl_extras.compare.series import Series
from oapl_extras.compare.side_tables import reached_table, rewards_table, runs_table, settings_table
from oapl_extras.compare.tracks import Track

_STEPS, _ROLLOUTS = "optimiser steps of the run", "rollouts sampled for training so far"
_PARTS, _ESTIMATE_PARTS = 30, 8
"""A moving mean covers one of so many parts of the longest run; an estimate of the entropy is noisier."""
_MOST_STARTS = 12
"""Most starts of rounds drawn as vertical lines; more would hide the data."""


@dataclass(frozen=True)
class Section:
    """A heading with its figure, tables, and the files that hold the numbers."""

    title: str
    figure: Figure
    files: tuple[str, ...]
    tables: tuple[Table, ...] = ()


@dataclass(frozen=True)
class _Page:
    """Source of the figures, and the folder for them."""

    tracks: Sequence[Track]
    folder: Path

    @property
    def styles(self) -> dict[str, int]:
        """Label -> colour and marker; 0 is the base's."""
        return {label: i + 1 for i, label in enumerate(series.by_label(self.tracks))}

    def line(self, one: Series, label: str = "", **look: object) -> Line:
        """Make the line that draws a series: under ``label``, or its own; ``look`` are fields of Line."""
        x, y, low, high = zip(*((p.x, p.y, p.low, p.high) for p in one.points), strict=True)
        shown = {"style": self.styles[one.label]} | look
        return Line(label or one.label, x, y, low, high, **shown)  # type: ignore[arg-type]  # names are Line's

    @property
    def starts(self) -> tuple[float, ...]:
        """Find the steps where rounds begin, if a round begins at about the same step in every run."""
        trained = [track for track in self.tracks if track.steps]
        rounds = max((len(track.config.rounds) for track in trained), default=0)
        if not 1 < rounds <= _MOST_STARTS:
            return ()
        places, longest = [], max(len(track.steps) for track in trained)
        for number in range(1, rounds):
            steps = [track.steps_before(number) for track in trained if track.steps[-1].round >= number]
            # runs whose rounds have other lengths share no line: one at their mean would be true of none
            if steps and max(steps) - min(steps) > 0.03 * longest:
                return ()
            if steps:
                places.append(sum(steps) / len(steps))
        return tuple(places)

    def write_numbers(self, name: str, curves: Sequence[Series], names: Mapping[str, str]) -> str:
        """Write the CSV of a figure: every point of ``curves``, under the names of its columns."""
        import polars as pl

        file, once = f"{name}.csv", list(dict.fromkeys(curves))  # where nothing is smoothed, two series are the same
        pl.DataFrame(series.table(once, names), infer_schema_length=None).write_csv(self.folder / file)
        return file

    def picture(self, name: str, panels: Sequence[Panel], alt: str, caption: str) -> Figure:
        """Draw the figure ``name``."""
        draw_panels(self.folder / f"{name}.png", panels)
        return f"{name}.png", alt, caption


def write_figures(tracks: Sequence[Track], folder: Path, title: str = "Runs side by side") -> Path:
    """Draw what there is to draw in ``folder``, which is made; returns the page.

    Raises:
        ConfigError: a run is given twice.
        DataError: none of the runs has anything to draw yet.
    """
    # folders of the same name in two places are two runs
    names = [(track.label, track.run, str(track.config.runs_dir)) for track in tracks]
    twice = next((run for one in names if names.count(one) > 1 for run in one[1:2]), None)
    if twice is not None:
        raise ConfigError(f"{twice}: is given twice under one label")
    if not any(track.milestones or track.steps for track in tracks):
        raise DataError(f"{', '.join(track.run for track in tracks)}: nothing is trained or measured yet to draw")
    folder.mkdir(parents=True, exist_ok=True)
    groups = series.by_label(tracks)
    values = {
        "title": title,
        "counts": ", ".join(f"{label} ({len(runs)} run{'s' * (len(runs) > 1)})" for label, runs in groups.items()),
        "missing": [text for track in tracks for text in track.missing],
        "sections": figure_sections(tracks, folder),
        "tables": [shown for shown in (runs_table(tracks), settings_table(tracks)) if shown],
    }
    target = folder / "index.html"
    target.write_text(html(render("side_by_side.md.jinja", values, "oapl_extras.compare")), encoding="utf-8")
    return target


def figure_sections(tracks: Sequence[Track], folder: Path) -> tuple[Section, ...]:
    """Draw every figure that there is to draw, with its numbers; written to ``folder``, which exists."""
    made, is_measured = _Page(tracks, folder), any(track.milestones for track in tracks)
    return (
        *(_pass_at_k(made) if is_measured else ()),
        *_accuracy(made),
        *_entropy(made),
        *(_samples(made) if is_measured else ()),
    )


def _pass_at_k(made: _Page) -> tuple[Section, ...]:
    curves = series.pass_at_k(made.tracks)
    wanted, is_one = series.shown_checkpoints(made.tracks), len(made.styles) == 1
    common = series.one_base(made.tracks)
    lines: dict[str, list[Line]] = {}
    # with one setting the checkpoints are compared, with several the settings
    for one in series.drawn(curves):
        assert one.checkpoint is not None
        if one.checkpoint not in wanted[one.label]:
            continue
        mine = lines.setdefault(one.panel, [])
        if is_one:
            place = wanted[one.label].index(one.checkpoint)
            mine.append(made.line(one, one.checkpoint, style=place))
        elif one.checkpoint == BASE and common:
            # the base of the first label stands for all
            if all(line.label != BASE for line in mine):
                mine.append(made.line(one, BASE, style=0, dash=1))
        else:
            mine.append(made.line(one, f"{one.label}, {one.checkpoint}", dash=int(one.checkpoint == BASE)))
    panels = [Panel(name, "k, answers per problem", "pass@k, %", mine, is_log2=True) for name, mine in lines.items()]
    figure = made.picture(
        "pass_at_k",
        panels,
        f"pass@k over k on {', '.join(lines)}: {_ends(panels)}.",
        f"Unbiased pass@k on held-out problems. {_shaded(curves)} k on a logarithmic axis. "
        "As figures 1, 4 and 5 (left) of arXiv 2602.19362.",
    )
    numbers = made.write_numbers("pass_at_k", curves, {"panel": "problem_set", "x": "k", "y": "pass_at_k"})
    rewards = series.mean_reward(made.tracks, lambda one: one.steps)
    tables = tuple(shown for shown in (reached_table(curves), rewards_table(rewards)) if shown)
    return (Section("pass@k", figure, (numbers,), tables),)


def _shaded(curves: Sequence[Series]) -> str:
    means = [one for one in curves if one.is_mean]
    alone = "95 % bootstrap interval over problems"
    if not means:
        return f"Shaded: {alone}."
    # a mean's band is the range of its runs, a single run's its bootstrap: the words must say which
    is_mixed = any(not one.is_mean for one in series.drawn(curves))
    rest = f"; of a single run the {alone}" if is_mixed else ""
    return f"Lines: mean over the runs of a label. Shaded: from their lowest to their highest{rest}."


def _ends(panels: Sequence[Panel]) -> str:
    lines = [(panel, line) for panel in panels for line in panel.lines if line.look != "rings"]
    return "; ".join(f"{panel.title}, {line.label}: {_said(panel, line)}" for panel, line in lines)


def _said(panel: Panel, line: Line) -> str:
    """Say a line's first and last value."""
    return " to ".join(f"{100 * y:.1f} %" if panel.is_percent else f"{y:.3f}" for y in (line.y[0], line.y[-1]))


def _accuracy(made: _Page) -> tuple[Section, ...]:
    """Held-out problems at the checkpoints, and the rollouts of every step."""
    reached = series.accuracy(made.tracks, lambda one: one.steps)
    # steps as they are go into the CSV, smoothed ones into the picture
    each = series.training(made.tracks, series.RIGHT_SHARE, lambda step: step.right_share)
    width = series.window(made.tracks, _PARTS)
    smooth = series.training(made.tracks, series.RIGHT_SHARE, lambda step: step.right_share, width)
    if not reached and not each:
        return ()
    panels, links = _milestone_panels(made, reached, _STEPS), []
    if rewards := series.mean_reward(made.tracks, lambda one: one.steps):
        lines = [made.line(one, bars=True) for one in series.drawn(rewards)]
        panels.append(Panel("held-out answers", _STEPS, "mean reward", lines, is_percent=False, starts=made.starts))
        names = {"panel": "problem_set", "name": "checkpoint", "x": "steps", "y": "mean_reward"}
        links.append(made.write_numbers("mean_reward", rewards, names))
    if reached:
        names = {"panel": "problem_set", "name": "checkpoint", "x": "steps", "y": "pass_at_1"}
        links.append(made.write_numbers("accuracy", reached, names))
    if each:
        lines = [made.line(one, look="plain") for one in series.drawn(smooth)]
        panels.append(Panel("training rollouts of the step", _STEPS, "correct answers, %", lines, starts=made.starts))
        names = {"panel": "metric", "x": "step", "y": "share"}
        links.append(made.write_numbers("right_share", [*each, *smooth], names))
    figure = made.picture(
        "accuracy",
        panels,
        f"Accuracy over optimiser steps. {_ends(panels)}.",
        f"{'Held-out pass@1 of the checkpoints. ' if reached else ''}{_bars(reached)}"
        f"Training rollouts: the correct ones among those of each step, {_smoothing(width, smooth)}; an earlier policy "
        "sampled them and groups were filtered, so they show what was learned from, not what was learned. Dotted: a "
        "round begins. As figures 2 and 3.",
    )
    return (Section("Accuracy over training", figure, tuple(links)),)


def _milestone_panels(made: _Page, curves: Sequence[Series], x: str) -> list[Panel]:
    lines: dict[str, list[Line]] = {}
    for one in series.drawn(curves):
        lines.setdefault(one.panel, []).append(made.line(one, bars=True))
    starts = made.starts if x == _STEPS else ()
    return [Panel(name, x, "held-out pass@1, %", mine, starts=starts) for name, mine in lines.items()]


def _bars(curves: Sequence[Series]) -> str:
    if not curves:
        return ""
    x = "The mean's x is a mean too. " if any(one.is_mean for one in curves) else ""
    return f"{_shaded(curves).replace('Shaded:', 'Bars:')} {x}"


def _smoothing(width: int, curves: Sequence[Series]) -> str:
    """Say what a line over steps is, and its band."""
    kinds = {one.is_mean for one in series.drawn(curves)}
    bands = ["the range of the runs"] * (True in kinds) + ["1.96 standard errors"] * (False in kinds and width > 1)
    mean = f"mean of {width} steps" if width > 1 else "each step"
    return f"{mean}, shaded: {' or, of a single run, '.join(bands)}" if bands else mean


def _entropy(made: _Page) -> tuple[Section, ...]:
    kinds = entropies.measured(made.tracks, _PARTS, _ESTIMATE_PARTS)
    if not kinds:
        return ()
    # the only exact number of an earlier version, so it stands beside both kinds of lines
    rings = entropies.sampling_entropy(made.tracks)
    lines = [
        made.line(one, one.label + kind.suffix, look="plain") for kind in kinds for one in series.drawn(kind.smooth)
    ]
    ends = "; ".join(f"{line.label} from {line.y[0]:.3f} to {line.y[-1]:.3f}" for line in lines)
    lines += [made.line(one, look="rings", bars=True) for one in series.drawn(rings)]
    panel = Panel("", _STEPS, "entropy, nats per token", lines, is_percent=False, starts=made.starts)
    meanings = "".join(f"Lines{kind.suffix}: {kind.meaning}; {_smoothing(kind.width, kind.smooth)}. " for kind in kinds)
    figure = made.picture(
        "entropy",
        [panel],
        f"Entropy in nats per token over optimiser steps: {ends}.",
        f"{meanings}Rings: the entropy of the policy that sampled a round, where it stood when it did: mean of -ln b "
        "over the tokens of the round's first epoch. Filtered groups are in neither. Dotted: a round begins. As "
        "figures 2 and 3.",
    )
    every = [*(one for kind in kinds for one in (*kind.each, *kind.smooth)), *rings]
    numbers = made.write_numbers("entropy", every, {"panel": "metric", "x": "step", "y": "nats_per_token"})
    return (Section("Entropy over training", figure, (numbers,)),)


def _samples(made: _Page) -> tuple[Section, ...]:
    curves = series.accuracy(made.tracks, lambda one: one.rollouts)
    if not curves:
        return ()
    panels = _milestone_panels(made, curves, _ROLLOUTS)
    figure = made.picture(
        "samples",
        panels,
        f"Held-out pass@1 against rollouts sampled for training. {_ends(panels)}.",
        f"Held-out pass@1 of the checkpoints. {_bars(curves)}Every rollout that was sampled counts, also those that "
        "were dropped. As figure 5 (right).",
    )
    names = {"panel": "problem_set", "name": "checkpoint", "x": "rollouts", "y": "pass_at_1"}
    numbers = made.write_numbers("samples", curves, names)
    return (Section("Accuracy against samples", figure, (numbers,)),)
