"""One finished round for someone who looks at Prefect's pages: counts by stage, pass@k, curves. Draws two figures.

The numbers are those of the report and its sections: what is said here and there cannot differ. pass@k is of the
round's own training problems, answered by the policy that sampled. Held-out problems are measured at the run's end.
"""

from dataclasses import dataclass
from pathlib import Path

from oapl_core import tables
from oapl_core.evaluation.pass_at_k import counts, mean_rewards
from oapl_core.evaluation.scores import Resampling, Score, shown_ks
from oapl_core.markdown import render
from oapl_core.reports import results
from oapl_core.reports.blocks import DASH, Table, interval_of, mean_of, table, whole, with_interval
from oapl_core.reports.sections.rollouts import dropped_figures
from oapl_core.reports.sections.training import Metrics, metrics, training_figure, training_table
from oapl_core.run_folder.run import Run
from oapl_core.run_folder.run_record import RoundRecord, RunRecord, frame
from oapl_extras.prefect_pages.pictures import with_pictures

_DRAWS = 8_000_000
"""Most draws of the bootstrap over a round's problems: resamples times problems, 64 MB."""
_FEWEST_RESAMPLES = 200


@dataclass(frozen=True)
class RoundSummary:
    """Summary of a round for Prefect's pages."""

    text: str
    """Markdown with its figures in it."""
    counts: Table
    """Stage, what, how many."""
    headline: str
    """Summary in one sentence."""


def summarize(run: Run, number: int, folder: Path) -> RoundSummary:
    """Summarize what round ``number`` did so far; figures are drawn in ``folder``.

    Raises:
        DataError: a file of the round is broken.
    """
    record = RunRecord(run, (number,))
    one = record.rounds[0]
    score = training_score(record)
    trained = metrics(record)
    counted = counts_table(one, trained.get(one.label))
    measured = results.results(record)
    headline = _headline(one, score)
    values = {
        "title": f"{run.root.name}: {one.label}",
        "headline": headline,
        "counts": counted,
        "dropped_figures": dropped_figures(record.rounds, folder),
        "solved": pass_table(score) if score else None,
        "training": training_table(record, trained) if trained else None,
        "training_figure": training_figure(trained, folder) if trained else None,
        "heldout": results.heldout_table(measured) if measured else None,
        "places": links_text(run, number),
    }
    text = render("round.md.jinja", values, "oapl_extras.prefect_pages")
    return RoundSummary(with_pictures(text, folder), counted, headline)


def _headline(one: RoundRecord, score: Score | None) -> str:
    first = score.pass_at(1) if score else None
    solved = f", pass@1 {with_interval(first)}" if first else ""
    if score and score.mean_reward:
        solved += f", mean reward {score.mean_reward.mean:.3f}"
    trained = f", {one.kept:,} trained on" if one.kept is not None else ""
    if not one.rollouts:  # rows that were read, not sampled
        return f"{one.kept or 0:,} {one.rows_are} trained on"
    return f"{one.rollouts:,} rollouts of {one.problems:,} problems{solved}{trained}"


def counts_table(one: RoundRecord, trained: Metrics | None) -> Table:
    """Count what each stage of a round made, and what it left out for which reason."""
    rows = []
    if one.rollouts:
        rows += [("sampling", "problems", one.problems), ("", "rollouts", one.rollouts)]
        rows += [("", "cut at the length limit", one.truncated)]
    rows += [("" if i else "verification", _words(o), n) for i, (o, n) in enumerate(one.outcomes.items())]
    if one.kept is not None:
        rows += [("groups", "rollouts trained on", one.kept), ("", "groups trained on", one.kept_groups or 0)]
        rows += [("", f"dropped: {_words(reason)}", n) for reason, n in one.dropped.items()]
    if trained:
        rows += [("training", "epochs", len(one.epochs)), ("", "optimiser steps", len(trained["step"]))]
    return table("Counts", ("stage", "what", "how many>"), [(a, b, whole(n)) for a, b, n in rows])


def _words(name: str) -> str:
    return name.replace("_", " ")


def pass_table(score: Score) -> Table:
    """Tabulate pass@k of the policy that sampled, on the problems that it sampled."""
    by_k = {k: score.pass_at(k) for k in shown_ks(score.samples)}
    rows = [(f"pass@{k}", mean_of(e), interval_of(e), whole(e.problems)) for k, e in by_k.items() if e]
    if earned := score.mean_reward:
        numbers = f"{earned.low:.3f} to {earned.high:.3f}", whole(earned.problems)
        rows.append(("mean reward", f"{earned.mean:.3f}", *numbers))
    note = f"Policy {score.policy_hash} on the round's training problems, before it was trained on them."
    return table("pass@k while sampling", ("", "share>", "95 % interval>", "problems>"), rows, note)


def training_score(record: RunRecord) -> Score | None:
    """Score the policy that sampled, on the round's problems; None before anything is judged."""
    run, one = record.run, record.rounds[0]
    parts = record.parts(run.verdicts(one.number))
    if not parts:
        return None
    rows = frame(parts, tables.VERDICTS, ("problem_id", "reward", "correct"))
    reward = run.judged_by(one.number).reward
    judged = counts(rows.select("problem_id", "correct").iter_rows())
    if not any(n for n, _ in judged.values()):
        return None
    config = run.config
    # a round may have thousands of problems, and the bootstrap holds resamples times problems numbers
    resamples = min(config.evaluation.bootstrap_resamples, max(_FEWEST_RESAMPLES, _DRAWS // len(judged)))
    return Score(
        one.label,
        one.policy_hash or DASH,
        answers=len(rows),
        truncated=one.truncated,
        verifier_errors=rows["reward"].null_count(),
        judged_P=judged,
        resampling=Resampling(resamples, config.seed, reward),
        rewards_P=mean_rewards(rows.select("problem_id", "reward").iter_rows()) if reward else None,
    )


def links_text(run: Run, number: int) -> tuple[str, ...]:
    """Say where a person finds the round's files and the report."""
    return (
        f"Round: {run.round_dir(number).resolve()}",
        f"Report: {run.report.resolve() / 'index.html'}",
        f"Logs: {run.root.resolve() / 'logs'}",
        f"Samples: oapl rollouts {run.root} --round {number}",
    )
