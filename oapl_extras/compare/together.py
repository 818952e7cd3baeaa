"""Writes the report of a comparison: ``python -m oapl_extras.compare.together COMPARISON_DIR``.

Reads the arms' run folders; writes report/index.html, report.md, table.csv (every number of the tables) and figures.
Arms that failed or are still to come are said to be so. The comparison's ledger records the report as a run's ledger
records the run's. The report is out of date as soon as an arm has gone on.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from oapl_core.markdown import html, render
from oapl_core.progress import say
from oapl_core.reports.blocks import gain_of, percent
from oapl_core.reports.compose import Figure
from oapl_core.run_folder.run_record import RunRecord
from oapl_core.stage import run_verb
from oapl_extras.compare.arm_tables import failures_table, held_out_table, training_table, write_numbers
from oapl_extras.compare.arms import Result, base_means, base_name, problem_sets, ranked, read_results
from oapl_extras.compare.folder import Comparison
from oapl_extras.compare.panels import Bar, draw_intervals
from oapl_extras.compare.side_by_side import figure_sections

LAYOUT_VERSION = 2
"""Raised when the same arms would give another report."""
_MOST_LINES = 7
"""Arms whose curves are drawn: as many as there are colours beside the base's."""


def write_report(comparison: Comparison) -> None:
    """Write the report, unless it is there and no arm has gone on since.

    Raises:
        DataError: a file of an arm is broken, or an arm was trained on other data than the others.
    """
    # the ledger's bytes, not the artifacts': a failed process changes the report, too
    inputs = {arm.root.name: _state(comparison, arm.root) for arm in comparison.arms}
    settings = {"layout_version": LAYOUT_VERSION, **comparison.config.model_dump(mode="json")}
    if comparison.is_done(comparison.report, inputs, settings):
        say(f"report: {comparison.report / 'index.html'} is up to date")
        return
    results = read_results(comparison)
    with comparison.writing(comparison.report, inputs, settings) as draft:
        draft.path.mkdir()
        text = compose(comparison, results, draft.path)
        write_numbers(results, comparison, draft.path / "table.csv")
        (draft.path / "report.md").write_text(text, encoding="utf-8")
        (draft.path / "index.html").write_text(html(text), encoding="utf-8")
        draft.rows = len(results)
    say(f"report: {comparison.report / 'index.html'}")


def _state(comparison: Comparison, root: Path) -> str:
    """Return the sha256 of an arm's ledger; "missing" before it has one."""
    from oapl_core.files import sha256_of

    ledger = root / "ledger.jsonl"
    return sha256_of(ledger) if ledger.exists() else "missing"


def compose(comparison: Comparison, results: Sequence[Result], folder: Path) -> str:
    """Make the report of what there is so far; its figures are written to ``folder``."""
    sets = problem_sets(results)
    shown = _shown(results, sets)
    # before anything is measured there is no curve, but the tables of what was trained
    tracks = [track for one in shown for track in one.tracks]
    drawn = f" Curves: {', '.join(one.label for one in shown)}." if 0 < len(shown) < len(results) else ""
    parent, number = comparison.parent, comparison.config.round
    values = {
        "comparison": comparison,
        "results": results,
        "seeds": ", ".join(map(str, comparison.config.seeds)),
        "drawn": drawn,
        "conclusions": list(_conclusions(comparison, results, sets)),
        "waiting": [f"{arm.name}: is still to be trained or measured" for one in results for arm in one.waiting],
        "heldout": [
            (name, held_out_table(comparison, results, name), _arms(comparison, results, name, folder, place))
            for place, name in enumerate(sets)
        ],
        "training": training_table(results),
        "sections": figure_sections(tracks, folder) if tracks else (),
        "failures": failures_table(results),
        "sampled": RunRecord(parent).rollouts_sampled(number),
        "trained_on": list(_trained_on(comparison)),
        "settings": list(_settings(comparison)),
    }
    return render("comparison.md.jinja", values, "oapl_extras.compare")


def _conclusions(comparison: Comparison, results: Sequence[Result], sets: Sequence[str]) -> Iterator[str]:
    for name in sets:
        best, first = ranked(results, name)[0], results[0]
        mine, theirs = best.means(name, 1), first.means(name, 1)
        assert mine is not None, "a measured arm comes first"
        text = f"{name}: {best.label} has the highest pass@1, {percent(mine.all.mean)}"
        gain = mine.minus(theirs) if theirs and best is not first else None
        yield text + (f"; against {first.label} that is {gain_of(gain)} points." if gain else ".")
    failed = [one.label for one in results if one.failures]
    if failed:
        yield f"Not trained to the end with every seed: {', '.join(failed)}."


def _shown(results: Sequence[Result], sets: Sequence[str]) -> list[Result]:
    """Whose curves are drawn: all arms, or the first and the best of the others."""
    order = ranked(results, sets[0]) if sets else results
    measured = [one for one in order if one.tracks]
    if len(measured) <= _MOST_LINES:
        return [one for one in results if one in measured]
    # the reference stays, however low it ranks
    return [*([results[0]] if results[0].tracks else []), *(r for r in measured if r is not results[0])][:_MOST_LINES]


def _arms(comparison: Comparison, results: Sequence[Result], name: str, folder: Path, place: int) -> Figure:
    """Draw pass@1 of every arm on one problem set."""
    base = base_means(results, name, 1)
    bars = [
        Bar(one.label, means.all.mean, means.all.low, means.all.high, means.seeds)
        for one in ranked(results, name)
        if (means := one.means(name, 1))
    ]
    if base:
        bars.append(Bar(base_name(comparison), base.all.mean, base.all.low, base.all.high, base.seeds, True))
    file = "arms.png" if not place else f"arms_{place}.png"
    draw_intervals(folder / file, bars, "held-out pass@1, %")
    each = "; ".join(f"{bar.label} {percent(bar.mean)}" for bar in bars)
    return (
        file,
        f"pass@1 of every arm on {name}: {each}.",
        "pass@1 on held-out problems, mean over seeds, with the 95 % bootstrap interval over problems; small circles: "
        "each seed. Square and dotted line: the checkpoint that all arms started from.",
    )


def _trained_on(comparison: Comparison) -> Iterator[tuple[str, str, str, str]]:
    """Yield the data of the trained arms, by sha256, as training recorded it; one row where all share it."""
    kinds: dict[tuple[str, str, str], list[str]] = {}
    for arm in comparison.arms:
        if arm.is_trained:
            data = comparison.data_of(arm)
            # data_of raises if an arm was trained on other rollouts: such a comparison has no report
            kinds.setdefault((data.kept, data.groups, data.start), []).append(arm.label)
    for (kept, groups, start), labels in kinds.items():
        yield kept, groups[:16], start[:16], "all" if len(kinds) == 1 else ", ".join(dict.fromkeys(labels))


def _settings(comparison: Comparison) -> Iterator[tuple[str, str, str]]:
    for arm in comparison.config.arms:
        own = ", ".join(f"{key} = {value}" for key, value in arm.objective.model_dump(mode="json").items())
        changes = {**comparison.config.training, **arm.training}
        changes |= {key: value for key in ("keep", "truncated", "epochs") if (value := getattr(arm, key)) is not None}
        yield arm.label, own, ", ".join(f"{key} = {value}" for key, value in changes.items()) or "as the run"


if __name__ == "__main__":
    raise SystemExit(run_verb(write_report, has_round=False, opens=Comparison.open))
