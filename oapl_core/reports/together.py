"""Writes the report of a comparison: ``python -m oapl_core.reports.together COMPARISON_DIR``.

Reads the arms' run folders; writes report/index.html, report.md, table.csv (every number of the tables) and figures.
Arms that failed or are still to come are said to be so. It is recorded in the comparison's ledger as a run's report is
in the run's, and is out of date as soon as an arm has gone on.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from oapl_core.comparing.folder import Comparison
from oapl_core.evaluation.pass_at_k import MeanWithInterval
from oapl_core.progress import say
from oapl_core.reports.arms import Means, Result, base_means, base_name, largest_k, problem_sets, ranked, read_results
from oapl_core.reports.blocks import (
    DASH,
    Link,
    Picture,
    Report,
    Section,
    Table,
    duration,
    interval,
    percent,
    table,
    whole,
)
from oapl_core.reports.intervals import Bar, draw_intervals
from oapl_core.reports.markdown import markdown
from oapl_core.reports.page import page
from oapl_core.reports.side_by_side import figure_sections
from oapl_core.stage import run_verb

LAYOUT_VERSION = 1
"""Raised when the same arms would give another report."""
SHORT = (0, 2, 3, 5)
"""Columns of ``held_out_table`` that fit into a terminal."""
_MOST_LINES = 7
"""Arms whose curves are drawn: as many as there are colours beside the base's."""


def write_report(comparison: Comparison) -> None:
    """Write the report, unless it is there and no arm has gone on since.

    Raises:
        DataError: a file of an arm is broken, or an arm was trained on other data than the others.
    """
    inputs = {arm.root.name: _state(comparison, arm.root) for arm in comparison.arms}
    settings = {"layout_version": LAYOUT_VERSION, **comparison.config.model_dump(mode="json")}
    if comparison.is_done(comparison.report, inputs, settings):
        say(f"report: {comparison.report / 'index.html'} is up to date")
        return
    results = read_results(comparison)
    with comparison.writing(comparison.report, inputs, settings) as draft:
        draft.path.mkdir()
        report = compose(comparison, results, draft.path)
        _write_numbers(results, comparison, draft.path / "table.csv")
        (draft.path / "index.html").write_text(page(report), encoding="utf-8")
        (draft.path / "report.md").write_text(markdown(report), encoding="utf-8")
        draft.rows = len(results)
    say(f"report: {comparison.report / 'index.html'}")


def _state(comparison: Comparison, root: Path) -> str:
    """What an arm's ledger says; "missing" before it has one."""
    from oapl_core.files import sha256_of

    ledger = root / "ledger.jsonl"
    return sha256_of(ledger) if ledger.exists() else "missing"


def compose(comparison: Comparison, results: Sequence[Result], folder: Path) -> Report:
    """The report of what there is so far; its figures are written to ``folder``."""
    sets = problem_sets(results)
    sections = [_held_out(comparison, results, name, folder, place) for place, name in enumerate(sets)]
    sections.append(Section("Training", tables=(training_table(results),), links=(Link("table.csv", "All numbers"),)))
    shown = _shown(results, sets)
    tracks = [track for one in shown for track in one.tracks]
    if tracks:
        sections += figure_sections(tracks, folder)
    failures = failures_table(results)
    sections += [Section("Arms that failed", tables=(failures,))] if failures else []
    sections.append(_data(comparison, results))
    waiting = tuple(f"{arm.name}: is still to be trained or measured" for one in results for arm in one.waiting)
    seeds = ", ".join(map(str, comparison.config.seeds))
    drawn = f" Curves: {', '.join(one.label for one in shown)}." if 0 < len(shown) < len(results) else ""
    return Report(
        title=f"Comparison {comparison.config.name}",
        subtitle=f"{len(results)} arms with seeds {seeds}, on round {comparison.config.round} of "
        f"{comparison.parent.root.name}. Every number is computed from files of the arms.{drawn}",
        conclusions=tuple(_conclusions(comparison, results, sets)),
        tiles=(),
        missing=waiting,
        sections=tuple(sections),
        unfinished="Not every arm is measured.",
    )


def _conclusions(comparison: Comparison, results: Sequence[Result], sets: Sequence[str]) -> Iterator[str]:
    for name in sets:
        best, first = ranked(results, name)[0], results[0]
        mine, theirs = best.means(name, 1), first.means(name, 1)
        assert mine is not None, "a measured arm comes first"
        text = f"{name}: {best.label} has the highest pass@1, {percent(mine.all.mean)}"
        gain = mine.minus(theirs) if theirs and best is not first else None
        yield text + (f"; against {first.label} that is {_signed(gain)} points." if gain else ".")
    failed = [one.label for one in results if one.failures]
    if failed:
        yield f"Not trained to the end with every seed: {', '.join(failed)}."


def _shown(results: Sequence[Result], sets: Sequence[str]) -> list[Result]:
    """Whose curves are drawn: all arms, or the first and the best of the others."""
    order = ranked(results, sets[0]) if sets else results
    measured = [one for one in order if one.tracks]
    if len(measured) <= _MOST_LINES:
        return [one for one in results if one in measured]
    return [*([results[0]] if results[0].tracks else []), *(r for r in measured if r is not results[0])][:_MOST_LINES]


def _held_out(comparison: Comparison, results: Sequence[Result], name: str, folder: Path, place: int) -> Section:
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
    picture = Picture(
        file,
        f"pass@1 of every arm on {name}: {each}.",
        "pass@1 on held-out problems, mean over seeds, with the 95 % bootstrap interval over problems; small circles: "
        "each seed. Square and dotted line: the checkpoint that all arms started from.",
    )
    return Section(
        name[:1].upper() + name[1:], pictures=(picture,), tables=(held_out_table(comparison, results, name),)
    )


def held_out_table(comparison: Comparison, results: Sequence[Result], name: str) -> Table:
    """A row for each measured arm, the highest pass@1 first, and the checkpoint that they started from."""
    k, first = largest_k(results, name), results[0]
    rows = []
    for one in ranked(results, name):
        means, reference = one.means(name, 1), first.means(name, 1)
        if means is None:
            continue
        gain = means.minus(reference) if reference and one is not first else None
        rows.append(
            (
                one.label,
                whole(len(means.seeds)),
                *_pass_cells(means),
                _signed(gain) if gain else DASH,
                *_pass_cells(one.means(name, k))[::2],
                _number(one.answers.get("tokens"), 1),
                percent(one.answers.get("truncated")),
            )
        )
    base = base_means(results, name, 1)
    if base:
        at_k = _pass_cells(base_means(results, name, k))[::2]
        rows.append((base_name(comparison), whole(len(base.seeds)), *_pass_cells(base), DASH, *at_k, DASH, DASH))
    columns = (
        "arm",
        "seeds>",
        "pass@1>",
        "95 % over problems>",
        "seeds from, to>",
        f"against {first.label}>",
        f"pass@{k}>",
        "seeds from, to>",
        "tokens>",
        "truncated>",
    )
    marked = next((i for i, row in enumerate(rows) if row[0] == first.label), None)
    note = (
        "Unbiased pass@k, mean over seeds. 95 % interval: bootstrap over problems, each with its mean over the seeds. "
        f"Against {first.label}: difference of pass@1 in points with its 95 % interval, paired by problem. Tokens: "
        "mean length of held-out answers."
    )
    return table(f"Arms on {name}", columns, rows, note, marked)


def _pass_cells(means: Means | None) -> tuple[str, str, str]:
    """Mean, interval over problems, range of the seeds."""
    if means is None:
        return DASH, DASH, DASH
    seeds = interval(min(means.seeds), max(means.seeds))
    return percent(means.all.mean), interval(means.all.low, means.all.high), seeds


def training_table(results: Sequence[Result]) -> Table:
    """What each arm did and took, failed ones too."""
    rows = [
        (
            one.label,
            whole(one.training.get("steps")),
            whole(one.training.get("sequences")),
            _number(one.training.get("entropy"), 3),
            _number(one.training.get("kl"), 4),
            _number(one.training.get("step_s"), 3),
            _time(one.training.get("training_s")),
            f"{len(one.failures)} failed" if one.failures else DASH,
        )
        for one in results
    ]
    columns = (
        "arm",
        "steps>",
        "rollouts trained on>",
        "entropy at the end>",
        "KL>",
        "seconds a step>",
        "training>",
        "seeds",
    )
    estimated = [one.label for one in results if one.training.get("has_entropy", 1.0) != 1.0]
    older = f" (an earlier version's estimate for {', '.join(estimated)})" if estimated else ""
    note = (
        f"Means over the trained seeds. Entropy: of the policy, exact{older}, nats per token of the rollouts of the "
        "last eighth of the steps, which another policy sampled. KL: k3 estimate of KL(behavior, policy) per token "
        "over the last epoch, nats. Training: wall time of the arm's training processes, start-up included; nothing "
        "was sampled or verified again."
    )
    return table("What the arms did", columns, rows, note)


def failures_table(results: Sequence[Result]) -> Table | None:
    """Why seeds were not trained to their end; None if all were."""
    rows = [(arm.label, whole(arm.seed), text) for one in results for arm, text in one.failures]
    note = "A loss or gradient that is not finite is a result of the arm's settings; it is not tried again."
    return table("Arms that failed", ("arm", "seed>", "why"), rows, note) if rows else None


def _data(comparison: Comparison, results: Sequence[Result]) -> Section:
    """The same rollouts, the same sha256, the same budget: read from what training recorded."""
    trained = [arm for arm in comparison.arms if arm.is_trained]
    kinds: dict[tuple[str, str, str], list[str]] = {}
    for arm in trained:
        found = comparison.data_of(arm)
        kinds.setdefault((found.kept, found.groups, found.start), []).append(arm.label)
    rows = [
        (kept, groups[:16], start[:16], "all" if len(kinds) == 1 else ", ".join(dict.fromkeys(labels)))
        for (kept, groups, start), labels in kinds.items()
    ]
    parent, number = comparison.parent, comparison.config.round
    parts = f"{parent.name(parent.rollouts(number))}/"
    sampled = sum(entry.rows for name, entry in parent.ledger.artifacts().items() if name.startswith(parts))
    text = (
        f"Every arm shares the {sampled:,} rollouts and verdicts of round {number} of {parent.root.name} (hard links, "
        "compared by sha256) and starts from one checkpoint. Seeds change the order of training, adapters and the "
        "sampling of held-out answers."
    )
    note = "As the ledgers recorded it when each arm was trained."
    columns = ("groups kept", "sha256 of the groups file", "sha256 of the start", "arms")
    objectives = table("Settings of the arms", ("arm", "objective", "training"), list(_settings(comparison)))
    return Section("The same data", (text,), tables=(table("Trained on", columns, rows, note), objectives))


def _settings(comparison: Comparison) -> Iterator[tuple[str, str, str]]:
    for arm in comparison.config.arms:
        own = ", ".join(f"{key} = {value}" for key, value in arm.objective.model_dump(mode="json").items())
        changes = {**comparison.config.training, **arm.training}
        changes |= {key: value for key in ("keep", "truncated", "epochs") if (value := getattr(arm, key)) is not None}
        yield arm.label, own, ", ".join(f"{key} = {value}" for key, value in changes.items()) or "as the run"


def _write_numbers(results: Sequence[Result], comparison: Comparison, path: Path) -> None:
    """A row for each arm and problem set, and one for the checkpoint that they started from."""
    import polars as pl

    rows = [row for name in problem_sets(results) or [""] for row in _numbers(results, comparison, name)]
    pl.DataFrame(rows, infer_schema_length=None).write_csv(path)


def _numbers(results: Sequence[Result], comparison: Comparison, name: str) -> Iterator[dict[str, Any]]:
    k, first = largest_k(results, name), results[0].means(name, 1)
    for one in ranked(results, name):
        means, at_k = one.means(name, 1), one.means(name, k)
        gain = means.minus(first) if means and first and one is not results[0] else None
        yield {
            "arm": one.label,
            "problem_set": name,
            "seeds": len(one.tracks),
            "failed": len(one.failures),
            **_columns("pass_at_1", means),
            "k": k,
            **_columns("pass_at_k", at_k),
            "difference": gain.mean if gain else None,
            "difference_low": gain.low if gain else None,
            "difference_high": gain.high if gain else None,
            **{key: one.training.get(key) for key in ("entropy", "kl", "steps", "sequences", "step_s", "training_s")},
            **{key: one.answers.get(key) for key in ("tokens", "truncated")},
        }
    base = base_means(results, name, 1)
    if base:
        yield {
            "arm": base_name(comparison),
            "problem_set": name,
            "seeds": len(base.seeds),
            "failed": 0,
            **_columns("pass_at_1", base),
            "k": k,
            **_columns("pass_at_k", base_means(results, name, k)),
        }


def _columns(name: str, means: Means | None) -> dict[str, float | None]:
    if means is None:
        return dict.fromkeys((name, f"{name}_low", f"{name}_high", f"{name}_seeds_from", f"{name}_seeds_to"))
    return {
        name: means.all.mean,
        f"{name}_low": means.all.low,
        f"{name}_high": means.all.high,
        f"{name}_seeds_from": min(means.seeds),
        f"{name}_seeds_to": max(means.seeds),
    }


def _signed(gain: MeanWithInterval) -> str:
    """``+1.2 (-0.4 to +2.8)`` in percentage points."""
    return f"{100 * gain.mean:+.1f} ({100 * gain.low:+.1f} to {100 * gain.high:+.1f})"


def _number(value: float | None, digits: int) -> str:
    return DASH if value is None else f"{value:.{digits}f}"


def _time(seconds: float | None) -> str:
    return DASH if seconds is None else duration(seconds)


if __name__ == "__main__":
    raise SystemExit(run_verb(write_report, has_round=False, opens=Comparison.open))
