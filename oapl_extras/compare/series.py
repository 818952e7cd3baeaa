"""The numbers of the figures that set runs side by side; pure. Tracks in, one table of points for each figure out.

Runs with the same label are seeds of one setting. Beside each run's own series there is their mean, with the range from
the lowest to the highest seed. A single run's interval is the bootstrap over problems (evaluation/pass_at_k.py). The
figures are those of the OAPL paper (arXiv 2602.19362). They show pass@k over k (fig. 1, 4, 5 left), accuracy and
entropy over training (fig. 2, 3), accuracy over samples spent (fig. 5 right).
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from oapl_core.evaluation.pass_at_k import MeanWithInterval
from oapl_core.evaluation.scores import Score
from oapl_core.run_folder.run_record import BASE
from oapl_extras.compare.tracks import Milestone, Track, TrainingStep

Cell = str | float | int | None
BOOTSTRAP = "95 % bootstrap over problems"
OF_STEPS = "1.96 standard errors of the mean over steps"
RIGHT_SHARE = "right_share"


@dataclass(frozen=True)
class Point:
    """One value with its interval; without one ``low`` and ``high`` are the value."""

    name: str
    """The same in every seed: a checkpoint, a k, or a step."""
    x: float
    y: float
    low: float
    high: float
    problems: int | None = None


@dataclass(frozen=True)
class Series:
    """One line of a figure: points of one run, or their means over the runs of a label."""

    label: str
    """Label of the runs."""
    runs: tuple[str, ...]
    """Folders; several: the mean over them."""
    panel: str
    """Problem set, or what is measured."""
    checkpoint: str | None
    """Checkpoint whose pass@k it is; None where the points are checkpoints or steps."""
    interval: str
    """Meaning of ``low`` and ``high``; empty: they mean nothing."""
    points: tuple[Point, ...]

    @property
    def is_mean(self) -> bool:
        """Whether it stands for several runs."""
        return len(self.runs) > 1


def by_label(tracks: Sequence[Track]) -> dict[str, list[Track]]:
    """Group the runs of each label, labels in the order given."""
    return {label: [t for t in tracks if t.label == label] for label in dict.fromkeys(t.label for t in tracks)}


def shown_ks(samples: int) -> tuple[int, ...]:
    """Return powers of two up to the number of answers, and that number."""
    return tuple(sorted({2**i for i in range(samples.bit_length())} | {samples})) if samples else ()


def pass_at_k(tracks: Sequence[Track]) -> list[Series]:
    """Make series of pass@k of every measured checkpoint on every problem set."""

    def of(track: Track) -> Iterator[Series]:
        for one in track.milestones:
            for benchmark, score in one.scores.items():
                yield Series(track.label, (track.run,), benchmark, one.name, BOOTSTRAP, tuple(_curve(score)))

    return with_means(tracks, of)


def _curve(score: Score) -> Iterator[Point]:
    for k in shown_ks(score.samples):
        # k up to the largest n: some problems may have fewer answers, so this may be none
        yield from _point(str(k), k, score.pass_at(k))


def _point(name: str, x: float, estimate: MeanWithInterval | None) -> Iterator[Point]:
    """Yield one point, or none where there is no estimate."""
    if estimate is not None:
        yield Point(name, x, estimate.mean, estimate.low, estimate.high, estimate.problems)


def accuracy(tracks: Sequence[Track], cost: Callable[[Milestone], int | None]) -> list[Series]:
    """Make series of pass@1 of the checkpoints on every problem set, against what each has cost.

    Args:
        tracks: the runs.
        cost: x of a checkpoint; None leaves it out.
    """

    def of(track: Track) -> Iterator[Series]:
        for benchmark in track.benchmarks:
            points = tuple(_milestones(track, benchmark, cost))
            if points:
                yield Series(track.label, (track.run,), benchmark, None, BOOTSTRAP, points)

    return with_means(tracks, of)


def _milestones(track: Track, benchmark: str, cost: Callable[[Milestone], int | None]) -> Iterator[Point]:
    for one in track.milestones:
        spent, score = cost(one), one.scores.get(benchmark)
        if spent is not None and score is not None:
            yield from _point(one.name, spent, score.pass_at(1))


def mean_reward(tracks: Sequence[Track], cost: Callable[[Milestone], int | None]) -> list[Series]:
    """Make series of the mean reward, as ``accuracy`` does; of runs with `[reward]`: in others it is pass@1."""

    def of(track: Track) -> Iterator[Series]:
        for benchmark in track.benchmarks:
            known = [
                (one, cost(one), score.mean_reward) for one in track.milestones if (score := one.scores.get(benchmark))
            ]
            points = [p for one, x, estimate in known if x is not None for p in _point(one.name, x, estimate)]
            if points:
                yield Series(track.label, (track.run,), benchmark, None, BOOTSTRAP, tuple(points))

    return with_means(tracks, of)


def training(
    tracks: Sequence[Track], metric: str, value: Callable[[TrainingStep], float | None], window: int = 1
) -> list[Series]:
    """Make series of a metric over optimiser steps: a centred mean of ``window`` steps, of fewer at its round's ends.

    A mean over seeds has a point where every seed has one: it ends with the shortest.
    """
    name = metric if window == 1 else f"{metric}, mean of {window} steps"

    def of(track: Track) -> Iterator[Series]:
        points = tuple(_smoothed(track.steps, value, window))
        if points:
            yield Series(track.label, (track.run,), name, None, "" if window == 1 else OF_STEPS, points)

    return with_means(tracks, of)


def _smoothed(
    steps: Sequence[TrainingStep], value: Callable[[TrainingStep], float | None], window: int
) -> Iterator[Point]:
    # a mean across two rounds would mix rollouts of two policies
    for _, mine in groupby(steps, lambda step: step.round):
        known = [(step.number, y) for step in mine if (y := value(step)) is not None]
        for i, (number, _) in enumerate(known):
            near = [y for _, y in known[max(0, i - window // 2) : i + window // 2 + 1]]
            mean, half = _with_error(near)
            yield Point(str(number), number, mean, mean - half, mean + half)


def _with_error(values: Sequence[float]) -> tuple[float, float]:
    """Mean, and 1.96 standard errors of it; 0 for one value alone."""
    n, mean = len(values), math.fsum(values) / len(values)
    # the spread of one value is unknown; no band is drawn then
    if n == 1:
        return mean, 0.0
    # fsum: no digit is lost where many steps are summed
    variance = math.fsum((value - mean) ** 2 for value in values) / (n - 1)
    return mean, 1.96 * math.sqrt(variance / n)


def window(tracks: Sequence[Track], parts: int) -> int:
    """Return how many steps a moving mean covers, the same for all runs: odd, one of ``parts`` parts of the longest."""
    longest = max((len(track.steps) for track in tracks), default=0)
    return longest // parts | 1  # odd, so that a step stands in the middle of its mean


def with_means(tracks: Sequence[Track], of: Callable[[Track], Iterator[Series]]) -> list[Series]:
    """``of`` each run, and the means over the runs of a label."""
    lines = []
    for label, group in by_label(tracks).items():
        each = [series for track in group for series in of(track)]
        lines += each
        for key in dict.fromkeys((one.panel, one.checkpoint) for one in each):
            mine = [one for one in each if (one.panel, one.checkpoint) == key]
            if len(mine) > 1:
                lines.append(mean_of(label, mine))
    return [one for one in lines if one.points]


def mean_of(label: str, members: Sequence[Series]) -> Series:
    """Average the members, with their range, at the points that all of them have."""
    runs = tuple(run for one in members for run in one.runs)
    by_name = [{point.name: point for point in one.points} for one in members]
    points = []
    for name in by_name[0]:
        same = [points_of[name] for points_of in by_name if name in points_of]
        # a seed that stopped early would otherwise bend the mean where it ends
        if len(same) == len(members):
            ys = [point.y for point in same]
            x = sum(point.x for point in same) / len(same)
            points.append(Point(name, x, sum(ys) / len(ys), min(ys), max(ys), same[0].problems))
    first = members[0]
    return Series(label, runs, first.panel, first.checkpoint, f"range of {len(runs)} runs", tuple(points))


def drawn(series: Sequence[Series]) -> list[Series]:
    """Pick the series that a figure shows: the mean of a label with several runs, the run itself of a single one."""
    # seeds behind a mean are in the CSV; drawn too they would hide it
    means = {(one.label, one.panel, one.checkpoint) for one in series if one.is_mean}
    return [one for one in series if one.is_mean or (one.label, one.panel, one.checkpoint) not in means]


def shown_checkpoints(tracks: Sequence[Track], most: int = 4) -> dict[str, list[str]]:
    """Label -> the checkpoints whose pass@k is drawn: of one setting up to ``most``, of several base and last."""
    groups, shown = by_label(tracks), {}
    # with two checkpoints of each of several labels a panel is full
    count = most if len(groups) == 1 else 2
    for label, group in groups.items():
        names = list(dict.fromkeys(one.name for track in group for one in track.milestones))
        # spread evenly, first and last among them
        spread = {round(i * (len(names) - 1) / (count - 1)) for i in range(count)}
        shown[label] = [name for i, name in enumerate(names) if i in spread]
    return shown


def one_base(tracks: Sequence[Track]) -> bool:
    """Tell whether several labels started from the same checkpoints, so that one line is enough for them."""
    groups = by_label(tracks)
    bases = [{m.policy_hash for t in group for m in t.milestones if m.name == BASE} for group in groups.values()]
    # no base measured is no common base: all() of nothing is true
    return len(groups) > 1 and bool(bases[0]) and all(one == bases[0] for one in bases)


def table(series: Sequence[Series], names: Mapping[str, str]) -> list[dict[str, Cell]]:
    """Make every point a row.

    Args:
        series: what a figure shows, and the runs behind its means.
        names: what ``panel``, ``name``, ``x`` and ``y`` are called; a name that is left out is a column that is.
    """
    return [_row(one, point, names) for one in series for point in one.points]


def _row(one: Series, point: Point, names: Mapping[str, str]) -> dict[str, Cell]:
    x = int(point.x) if point.x == int(point.x) else point.x  # a mean over seeds may lie between steps
    values: dict[str, Cell] = {"panel": one.panel, "name": point.name, "x": x, "y": point.y}
    return {
        "label": one.label,
        "runs": " ".join(one.runs),
        **({"checkpoint": one.checkpoint} if one.checkpoint else {}),
        **{column: values[key] for key, column in names.items()},
        "low": point.low,
        "high": point.high,
        "interval": one.interval,
        "problems": point.problems,
    }
