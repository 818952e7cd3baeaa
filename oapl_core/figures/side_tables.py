"""Tables of a page that sets runs side by side: what each label reached, the runs, settings that differ. Pure."""

from collections.abc import Sequence

from oapl_core.figures.series import Series, by_label, drawn
from oapl_core.figures.tracks import BASE, Track
from oapl_core.reports.blocks import DASH, Table, interval, percent, table, whole
from oapl_core.reports.provenance import all_settings

_PLACES = ("name", "seed", "runs_dir", "cache_dir")
_LONGEST = 60


def reached_table(found: Sequence[Series]) -> Table:
    """pass@1 and pass@n of base and last checkpoint; ``found`` is what series.pass_at_k gives."""
    rows = []
    shown = drawn(found)
    for label, panel in dict.fromkeys((one.label, one.panel) for one in shown):
        mine = {str(one.checkpoint): one for one in shown if (one.label, one.panel) == (label, panel)}
        for name in dict.fromkeys([*([BASE] if BASE in mine else []), list(mine)[-1]]):
            first, last = mine[name].points[0], mine[name].points[-1]
            rows.append(
                (
                    label,
                    whole(len(mine[name].runs)),
                    panel,
                    name,
                    percent(first.y),
                    interval(first.low, first.high),
                    f"{last.x:.0f}",
                    percent(last.y),
                    interval(last.low, last.high),
                )
            )
    columns = ("label", "runs>", "problem set", "checkpoint", "pass@1>", "interval>", "k>", "pass@k>", "interval>")
    note = "Interval: of one run 95 % by bootstrap over problems, of several from the lowest to the highest."
    return table("Held-out problems, before and after", columns, rows, note)


def runs_table(tracks: Sequence[Track]) -> Table:
    """Every run that was read."""
    rows = [
        (
            t.label,
            t.run,
            whole(t.config.seed),
            t.config.objective.name,
            whole(len(t.config.rounds)),
            whole(len(t.steps)),
            whole(t.rollouts),
            next((m.policy_hash for m in t.milestones if m.name == BASE), DASH),
        )
        for t in tracks
    ]
    columns = ("label", "run", "seed>", "objective", "rounds>", "steps>", "rollouts>", "base")
    return table("What was read", columns, rows, "Base: hash of the weights and tokenizer that it started from.")


def settings_table(tracks: Sequence[Track]) -> Table | None:
    """What the labels differ in; None if in nothing."""
    groups = {label: [all_settings(t.config) for t in group] for label, group in by_label(tracks).items()}
    keys = list(dict.fromkeys(key for dumps in groups.values() for dump in dumps for key in dump))
    rows = []
    for key in keys:
        cells = [", ".join(dict.fromkeys(dump.get(key, DASH) for dump in dumps)) for dumps in groups.values()]
        if key not in _PLACES and len({dump.get(key) for dumps in groups.values() for dump in dumps}) > 1:
            rows.append((key, *(cell if len(cell) <= _LONGEST else f"{cell[:_LONGEST]}…" for cell in cells)))
    return table("Settings that differ", ("setting", *groups), rows) if rows else None
