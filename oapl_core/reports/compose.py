"""Facts -> Report: which sections there are, in which order, with which figures. Writes figures and rounds' pages."""

from pathlib import Path

from oapl_core.reports import process, results
from oapl_core.reports.alarms import alarms
from oapl_core.reports.blocks import Link, Picture, Report, Section, percent, whole
from oapl_core.reports.drawing import Curve, draw_dropped, draw_pass_at_k, draw_samples_spent, draw_training
from oapl_core.reports.facts import Facts
from oapl_core.reports.forgetting import forgetting_section, losses
from oapl_core.reports.records import rollouts_removed
from oapl_core.reports.results import Results, label
from oapl_core.reports.rounds.round_page import round_page

_PANELS = {
    "loss": "loss",
    "learning_rate": "learning rate",
    "log_ratio_right": "log-ratio of correct answers, nats",
    "log_ratio_wrong": "log-ratio of wrong answers, nats",
    "log_ratio": "mean log-ratio, nats",
    "grad_norm": "gradient norm before clipping",
}


def compose(facts: Facts, folder: Path) -> Report:
    """Make the report of what there is so far; its PNGs and the pages of rounds are written to ``folder``."""
    # None before the evaluation: the sections that need it are left out, and facts.missing says so
    measured = results.results(facts)
    config, kept = facts.run.config, forgetting_section(facts)
    starts = process.starts_table(facts)
    sections = [
        *([_heldout(facts, measured, folder), _choice(measured), _by_kind(facts, measured)] if measured else []),
        *([kept] if kept else []),
        *([training_section(facts, folder)] if any(r.metrics for r in facts.rounds) else []),
        *([_rollouts(facts, folder)] if any(r.rollouts for r in facts.rounds) else []),
        *([_answers(facts, measured)] if measured else []),
        Section("Time", tables=(process.time_table(facts), *([starts] if starts.rows else []))),
        Section(
            "Reproduction",
            tables=(process.settings_table(facts), process.policies_table(facts), process.versions_table(facts)),
        ),
    ]
    told = [alarm.line for one in facts.rounds for alarm in alarms(facts.run, one.number)]
    objective = " then ".join(dict.fromkeys(one.folder.upper() for one in config.objectives))
    rounds = f"{len(config.rounds)} round{'s' * (len(config.rounds) != 1)}"
    subtitle = f"{objective}, {rounds}, seed {config.seed}. Every number is computed from files of this run."
    return Report(
        title=f"Report of {facts.run.root.name}",
        subtitle=subtitle,
        conclusions=(
            *told,
            *process.warnings(facts),
            *(results.conclusions(measured) if measured else ()),
            *losses(facts),
        ),
        tiles=results.tiles(facts, measured) if measured else (),
        missing=tuple(facts.missing),
        sections=tuple(section for section in sections if section.tables or section.samples),
    )


def _heldout(facts: Facts, measured: Results, folder: Path) -> Section:
    curves = [_curve(measured, i) for i in range(len(measured.heldout))]
    # figures go to the draft's folder, which is renamed once all of it is written
    draw_pass_at_k(folder / "pass_at_k.png", curves)
    ends = ", ".join(f"{c.label} from {percent(c.y[0])} to {percent(c.y[-1])}" for c in curves)
    pass_at_k = Picture(
        "pass_at_k.png",
        f"pass@k from k = {curves[0].x[0]:.0f} to {curves[0].x[-1]:.0f} on held-out problems: {ends}.",
        "pass@k on held-out problems; shaded: 95 % bootstrap interval over problems. k on a logarithmic axis.",
    )
    return Section(
        "Held-out problems",
        pictures=(pass_at_k, _spent(facts, measured, folder)),
        tables=(results.heldout_table(measured),),
    )


def _curve(measured: Results, index: int) -> Curve:
    one = measured.heldout[index]
    known = [(k, e) for k in range(1, one.samples + 1) if (e := one.pass_at(k))]
    return Curve.of(label(measured, one.checkpoint), [k for k, _ in known], [e for _, e in known])


def _spent(facts: Facts, measured: Results, folder: Path) -> Picture:
    known = [(s, e) for s in measured.heldout if (e := s.pass_at(1))]
    spent = [facts.rollouts_spent(s.policy_hash) for s, _ in known]
    estimates = [e for _, e in known]
    curve = Curve.of("", spent, estimates)
    draw_samples_spent(folder / "samples_spent.png", curve, [label(measured, s.checkpoint) for s, _ in known])
    ends = "; ".join(f"{percent(e.mean)} after {whole(n)} rollouts" for n, e in zip(spent, estimates, strict=True))
    return Picture(
        "samples_spent.png",
        f"Held-out pass@1 against rollouts sampled for training: {ends}.",
        "Held-out pass@1 against rollouts sampled for training so far, kept or not; bars: 95 % bootstrap interval over "
        "problems.",
    )


def _choice(measured: Results) -> Section:
    return Section("Choice of the epoch", tables=(results.validation_table(measured),) if measured.validation else ())


def _by_kind(facts: Facts, measured: Results) -> Section:
    sets = results.sets_table(facts.run, measured)
    return Section("Kinds of problems", tables=(results.kinds_table(facts, measured), *([sets] if sets else [])))


def _answers(facts: Facts, measured: Results) -> Section:
    text = "Held-out problems drawn at random from each kind, not by result; the first answer of each checkpoint."
    return Section("Sample answers", (text,), samples=results.samples(facts, measured))


def training_section(facts: Facts, folder: Path) -> Section:
    """Show curves over the optimiser's steps, and each epoch's means."""
    rounds = {r.label: r.metrics for r in facts.rounds if r.metrics}
    draw_training(folder / "training.png", rounds, _PANELS)
    sizes = ", ".join(f"{name} {len(metrics['step'])} steps" for name, metrics in rounds.items())
    picture = Picture(
        "training.png",
        f"Six panels over optimiser steps ({sizes}): {', '.join(_PANELS.values())}.",
        "One value for each optimiser step. The log-ratio of an answer is the sum over its tokens of "
        "ln policy - ln behavior, averaged over the answers of the step.",
    )
    return Section("Training", pictures=(picture,), tables=(process.training_table(facts),))


def _rollouts(facts: Facts, folder: Path) -> Section:
    tables = [process.rollouts_table(facts)]
    if any(r.turns for r in facts.rounds):
        tables.append(process.turns_table(facts))
    if any(r.outcomes for r in facts.rounds):
        tables.append(process.outcomes_table(facts))
    if any(r.trust for r in facts.rounds):
        tables.append(process.trust_table(facts))
    if process.dropped_counts(facts):
        tables.append(process.dropped_table(facts))
    note, links = process.prompts_note(facts), _round_pages(facts, folder)
    return Section("Rollouts", (note,), pictures=dropped_pictures(facts, folder), tables=tuple(tables), links=links)


def dropped_pictures(facts: Facts, folder: Path) -> tuple[Picture, ...]:
    """Draw a bar for each round: trained on, and dropped by reason; none before groups are built."""
    counts = process.dropped_counts(facts)
    if not counts:
        return ()
    draw_dropped(folder / "dropped.png", counts)
    each = "; ".join(
        f"{name}: {', '.join(f'{n:,} {kind}' for kind, n in c.items() if n)}" for name, c in counts.items()
    )
    text = f"Rollouts by what became of them. {each}."
    return (Picture("dropped.png", text, "What became of each round's rollouts."),)


def _round_pages(facts: Facts, folder: Path) -> tuple[Link, ...]:
    links = []
    for one in facts.rounds:
        name = f"round_{one.number:02d}.html"
        # the page of the report before is in the run's folder, not in the draft's
        page = _round_page(facts, one.number, facts.run.report / name)
        if page is not None:
            (folder / name).write_text(page, encoding="utf-8")
            links.append(Link(name, f"Rollouts of {one.label}, token by token, with their verdicts"))
    return tuple(links)


def _round_page(facts: Facts, number: int, earlier: Path) -> str | None:
    """Return a round's page; the one of the report before where its rollouts were removed since."""
    # its answers are gone, and the page is what is left of them
    if rollouts_removed(facts.run, number):
        return earlier.read_text(encoding="utf-8") if earlier.is_file() else None
    return round_page(facts.run, number)
