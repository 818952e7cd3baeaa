"""RunRecord -> report.md, by report.md.jinja. Draws the figures and writes the rounds' pages beside it."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from oapl_core import plugins
from oapl_core.markdown import render
from oapl_core.reports import blocks, forgetting, process, results
from oapl_core.reports.alarms import alarms
from oapl_core.reports.blocks import percent, whole
from oapl_core.reports.drawing import Curve, draw_dropped, draw_pass_at_k, draw_samples_spent, draw_training
from oapl_core.reports.provenance import differing_settings, versions
from oapl_core.reports.results import Results, label
from oapl_core.run_folder.run_record import RoundRecord, RunRecord

Figure = tuple[str, str, str]
"""PNG beside the report: file name, what it shows in words, caption."""
_PANELS = {
    "loss": "loss",
    "learning_rate": "learning rate",
    "log_ratio_right": "log-ratio of correct answers, nats",
    "log_ratio_wrong": "log-ratio of wrong answers, nats",
    "log_ratio": "mean log-ratio, nats",
    "grad_norm": "gradient norm before clipping",
}


def compose(record: RunRecord, folder: Path) -> str:
    """Make the report of what there is so far; its PNGs and the pages of rounds are written to ``folder``."""
    # None before the evaluation: the sections that need it are left out, and record.missing says so
    measured, lost = results.results(record), forgetting.pairs(record)
    config, rounds = record.run.config, len(record.run.config.rounds)
    objective = " then ".join(dict.fromkeys(one.folder.upper() for one in config.objectives))
    counted = f"{objective}, {rounds} round{'s' * (rounds != 1)}, seed {config.seed}"
    told = [alarm.line for one in record.rounds for alarm in alarms(record, one.number)]
    summed_up = results.conclusions(measured) if measured else ()
    values = {
        "record": record,
        "config": config,
        "subtitle": f"{counted}. Every number is computed from files of this run.",
        "conclusions": (*told, *process.warnings(record), *summed_up, *forgetting.losses(lost)),
        "results": results,
        "measured": measured,
        "heldout_figures": _heldout_figures(record, measured, folder) if measured else (),
        "lost": lost,
        "training_figure": training_figure(record.rounds, folder),
        "dropped_figures": dropped_figures(record.rounds, folder),
        "pages": list(_round_pages(record, folder)),
        "process": process,
        "differing_settings": differing_settings,
        "versions": versions,
        "show": blocks,
    }
    return render("report.md.jinja", values, "oapl_core.reports")


def _heldout_figures(record: RunRecord, measured: Results, folder: Path) -> Iterator[Figure]:
    curves = [_curve(measured, i) for i in range(len(measured.heldout))]
    # figures go to the draft's folder, which is renamed once all of it is written
    draw_pass_at_k(folder / "pass_at_k.png", curves)
    ends = ", ".join(f"{c.label} from {percent(c.y[0])} to {percent(c.y[-1])}" for c in curves)
    yield (
        "pass_at_k.png",
        f"pass@k from k = {curves[0].x[0]:.0f} to {curves[0].x[-1]:.0f} on held-out problems: {ends}.",
        "pass@k on held-out problems; shaded: 95 % bootstrap interval over problems. k on a logarithmic axis.",
    )
    known = [(s, e) for s in measured.heldout if (e := s.pass_at(1))]
    spent = [record.rollouts_spent(s.policy_hash) for s, _ in known]
    curve = Curve.of("", spent, [e for _, e in known])
    draw_samples_spent(folder / "samples_spent.png", curve, [label(measured, s.checkpoint) for s, _ in known])
    ends = "; ".join(f"{percent(y)} after {whole(n)} rollouts" for n, y in zip(spent, curve.y, strict=True))
    yield (
        "samples_spent.png",
        f"Held-out pass@1 against rollouts sampled for training: {ends}.",
        "Held-out pass@1 against rollouts sampled for training so far, kept or not; bars: 95 % bootstrap interval over "
        "problems.",
    )


def _curve(measured: Results, index: int) -> Curve:
    one = measured.heldout[index]
    known = [(k, e) for k in range(1, one.samples + 1) if (e := one.pass_at(k))]
    return Curve.of(label(measured, one.checkpoint), [k for k, _ in known], [e for _, e in known])


def training_figure(rounds: Sequence[RoundRecord], folder: Path) -> Figure | None:
    """Draw curves over the optimiser's steps; None before a round is trained."""
    trained = {r.label: r.metrics for r in rounds if r.metrics}
    if not trained:
        return None
    draw_training(folder / "training.png", trained, _PANELS)
    sizes = ", ".join(f"{name} {len(metrics['step'])} steps" for name, metrics in trained.items())
    return (
        "training.png",
        f"Six panels over optimiser steps ({sizes}): {', '.join(_PANELS.values())}.",
        "One value for each optimiser step. The log-ratio of an answer is the sum over its tokens of "
        "ln policy - ln behavior, averaged over the answers of the step.",
    )


def dropped_figures(rounds: Sequence[RoundRecord], folder: Path) -> tuple[Figure, ...]:
    """Draw a bar for each round: trained on, and dropped by reason; none before groups are built."""
    counts = process.dropped_counts(rounds)
    if not counts:
        return ()
    draw_dropped(folder / "dropped.png", counts)
    each = "; ".join(
        f"{name}: {', '.join(f'{n:,} {kind}' for kind, n in c.items() if n)}" for name, c in counts.items()
    )
    text = f"Rollouts by what became of them. {each}."
    return (("dropped.png", text, "What became of each round's rollouts."),)


def _round_pages(record: RunRecord, folder: Path) -> Iterator[tuple[str, str]]:
    """Write the page of each round with rollouts; yield its file and what it shows."""
    make = plugins.resolve("page", "round")
    for one in record.rounds:
        name = f"round_{one.number:02d}.html"
        # its answers may be gone; the page of the report before, in the run's folder, is what is left of them
        earlier, is_gone = record.run.report / name, record.rollouts_removed(one.number)
        kept = earlier.read_text(encoding="utf-8") if is_gone and earlier.is_file() else None
        page = kept if is_gone else make(record, one.number)
        if page is not None:
            (folder / name).write_text(page, encoding="utf-8")
            yield name, f"Rollouts of {one.label}, token by token, with their verdicts"
