"""Tables of a page that sets runs side by side: what each label reached, the runs, settings that differ. Pure."""

from collections.abc import Callable, Sequence

from oapl_core.reports.blocks import DASH, Table, interval, percent, table, table_of, whole
from oapl_core.reports.sections.provenance import all_settings
from oapl_core.run_folder.run_record import BASE
from oapl_extras.compare.series import Series, by_label, drawn
from oapl_extras.compare.tracks import Track

_PLACES = ("name", "seed", "runs_dir", "cache_dir")
_LONGEST = 60
_NOT_THE_SETTING = ("name", "seed", "runs_dir", "cache_dir", "engine_python", "mirror", "time_limits_h", "report")
"""Settings that runs of one setting may differ in."""


def reached_table(curves: Sequence[Series]) -> Table:
    """Tabulate pass@1 and pass@n of base and last checkpoint; ``curves`` is what series.pass_at_k gives."""
    rows = []
    shown = drawn(curves)
    for label, panel in dict.fromkeys((one.label, one.panel) for one in shown):
        mine = {str(one.checkpoint): one for one in shown if (one.label, one.panel) == (label, panel)}
        # dict.fromkeys: a run with nothing but its base has it as the last, too
        for name in dict.fromkeys([*([BASE] if BASE in mine else []), list(mine)[-1]]):
            first, last = mine[name].points[0], mine[name].points[-1]
            at_1 = percent(first.y), interval(first.low, first.high)
            at_k = f"{last.x:.0f}", percent(last.y), interval(last.low, last.high)
            rows.append((label, whole(len(mine[name].runs)), panel, name, *at_1, *at_k))
    columns = ("label", "runs>", "problem set", "checkpoint", "pass@1>", "interval>", "k>", "pass@k>", "interval>")
    note = "Interval: of one run 95 % by bootstrap over problems, of several from the lowest to the highest."
    return table("Held-out problems, before and after", columns, rows, note)


def rewards_table(reached: Sequence[Series]) -> Table | None:
    """Mean reward of the first and the last checkpoint; ``reached`` is what series.mean_reward gives. None of none."""
    rows = []
    for one in drawn(reached):
        for point in dict.fromkeys((one.points[0], one.points[-1])):
            numbers = f"{point.y:.3f}", f"{point.low:.3f} to {point.high:.3f}"
            rows.append((one.label, whole(len(one.runs)), one.panel, point.name, *numbers))
    columns = ("label", "runs>", "problem set", "checkpoint", "mean reward>", "interval>")
    return table("Mean reward of held-out answers, before and after", columns, rows) if rows else None


def runs_table(tracks: Sequence[Track]) -> Table:
    """Tabulate every run that was read, with its size and where it started."""
    cells: dict[str, Callable[[Track], str]] = {
        "label": lambda t: t.label,
        "run": lambda t: t.run,
        "seed>": lambda t: whole(t.config.seed),
        "objective": lambda t: " then ".join(dict.fromkeys(one.name for one in t.config.objectives)),
        "rounds>": lambda t: whole(len(t.config.rounds)),
        "steps>": lambda t: whole(len(t.steps)),
        "rollouts>": lambda t: whole(t.rollouts),
        "base": lambda t: next((m.policy_hash for m in t.milestones if m.name == BASE), DASH),
    }
    return table_of("What was read", tracks, cells, "Base: hash of the weights and tokenizer that it started from.")


def settings_table(tracks: Sequence[Track]) -> Table | None:
    """Tabulate the settings that the labels differ in; None if in nothing."""
    groups = {label: [all_settings(t.config) for t in group] for label, group in by_label(tracks).items()}
    keys = list(dict.fromkeys(key for dumps in groups.values() for dump in dumps for key in dump))
    rows = []
    for key in keys:
        # seeds of one label agree as a rule; where they do not, all their values stand in the cell
        cells = [", ".join(dict.fromkeys(dump.get(key, DASH) for dump in dumps)) for dumps in groups.values()]
        if key not in _PLACES and len({dump.get(key) for dumps in groups.values() for dump in dumps}) > 1:
            rows.append((key, *(cell if len(cell) <= _LONGEST else f"{cell[:_LONGEST]}…" for cell in cells)))
    return table("Settings that differ", ("setting", *groups), rows) if rows else None


def differing(tracks: Sequence[Track]) -> str | None:
    """Say what runs of a label differ in, beside seed and place; None: nothing. Else they are no seeds of a setting."""
    for label, group in by_label(tracks).items():
        # each against the first is enough: what equals the first equals the others
        first = _setting(group[0])
        for track in group[1:]:
            mine = _setting(track)
            keys = [key for key in first | mine if first.get(key) != mine.get(key)]
            if keys:
                return f"{label}: {group[0].run} and {track.run} differ in {', '.join(keys[:3])}"
    return None


def _setting(track: Track) -> dict[str, str]:
    return {k: v for k, v in all_settings(track.config).items() if k.partition(".")[0] not in _NOT_THE_SETTING}
