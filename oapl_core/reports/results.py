"""Results of a run: pass rates, the choice of the epoch, kinds of problems, sample answers, and sentences.

Computes the report's numbers from a RunRecord; nothing here knows Markdown, HTML or files.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from oapl_core import tables
from oapl_core.evaluation.pass_at_k import PairedDifference
from oapl_core.reports.blocks import (
    DASH,
    Table,
    interval_of,
    mean_of,
    percent,
    reward_of,
    shortened,
    table,
    table_of,
    whole,
    with_interval,
)
from oapl_core.reports.scores import Resampling, Score, difference, score, shown_ks
from oapl_core.run_folder.run_record import RunRecord
from oapl_core.seeds import derive_seed

if TYPE_CHECKING:
    import polars as pl

_SAMPLES_PER_KIND = 2
_MOST_COLUMNS = 8


@dataclass(frozen=True)
class Results:
    """Scores of every measured checkpoint."""

    heldout: Sequence[Score]
    """Base, earlier rounds, chosen epoch."""
    validation: Sequence[Score]
    chosen: str | None
    """Name of the chosen checkpoint."""
    chosen_on: str = "validation"
    """Ground of the choice: `validation`, `heldout` or `last`."""

    @property
    def base(self) -> Score:
        """The model that round 0 started from."""
        return self.heldout[0]

    @property
    def last(self) -> Score:
        """The chosen epoch of the last round."""
        return self.heldout[-1]


def results(record: RunRecord) -> Results | None:
    """Compute scores from the evaluation's rows; None if nothing held out was measured yet."""
    import polars as pl

    if record.evaluation is None:
        return None
    config = record.run.config
    resampling = Resampling.of(config)
    splits = {s: record.evaluation.filter(pl.col("split") == s) for s in ("heldout", "validation")}
    # in the order of the rows, which the evaluation writes as base, earlier rounds, chosen epoch
    heldout = score(splits["heldout"], resampling)
    # a verifier that broke for every answer leaves nothing to report
    if not heldout or not heldout[0].samples:
        return None
    chosen = record.evaluation_details.get("chosen")
    chosen_on = str(record.evaluation_details.get("chosen_on", "validation"))
    validation = score(splits["validation"], resampling)
    return Results(heldout, validation, None if chosen is None else str(chosen), chosen_on)


def label(results: Results, checkpoint: str) -> str:
    """Name a checkpoint for a person."""
    # chosen on held-out problems is said in the checkpoint's own name
    how = {"validation": " (chosen)", "last": " (the last epoch)"}.get(results.chosen_on, "")
    return f"{checkpoint}{how}" if checkpoint == results.chosen else checkpoint


def heldout_table(results: Results) -> Table:
    """Tabulate one row for each checkpoint on held-out problems."""
    ks = shown_ks(results.base.samples)
    last: dict[str, Callable[[Score], str]] = {
        "truncated>": lambda one: percent(one.truncated / one.answers),
        "verifier errors>": lambda one: whole(one.verifier_errors),
    }
    note = "Unbiased pass@k; interval: bootstrap over problems. Truncated: answers cut at the length limit."
    if results.base.resampling.reward:
        note += f" Correct: a reward of {results.base.resampling.reward.right_from:g} or more."
    # pass@k of fewer problems than pass@1 is of others, too: a reader must know before comparing the two
    few = {one.checkpoint: sum(n < ks[-1] for n, _ in one.judged_P.values()) for one in results.heldout}
    short = [f"{checkpoint}: {problems}" for checkpoint, problems in few.items() if problems]
    if short:
        note += f" Problems with fewer than {ks[-1]} judged answers, left out of pass@{ks[-1]}: {', '.join(short)}."
    cells = _rates(results, results.heldout, [k for k in ks if k > 1]) | last
    return table_of("Pass rates of held-out problems", results.heldout, cells, note, len(results.heldout) - 1)


def _rates(results: Results, scores: Sequence[Score], ks: Sequence[int]) -> dict[str, Callable[[Score], str]]:
    """Make the columns of pass rates, with the mean reward where it is another number than pass@1."""
    earned = scores[0].resampling.reward is not None
    return {
        "checkpoint": lambda one: label(results, one.checkpoint),
        "pass@1>": lambda one: mean_of(one.pass_at(1)),
        "95 % interval>": lambda one: interval_of(one.pass_at(1)),
        **{f"pass@{k}>": partial(_pass_at, k) for k in ks},
        **({"mean reward>": lambda one: reward_of(one.mean_reward)} if earned else {}),
        "problems>": lambda one: whole(one.problems),
    }


def _pass_at(k: int, one: Score) -> str:
    return mean_of(one.pass_at(k))


def validation_table(results: Results) -> Table:
    """Tabulate every epoch on validation problems; the chosen one is marked."""
    k = shown_ks(max(s.samples for s in results.validation))[-1]
    names = [s.checkpoint for s in results.validation]
    marked = names.index(results.chosen) if results.chosen in names else None
    decides = results.chosen_on == "validation"
    note = "The epoch is chosen here; held-out problems have no say in it." if decides else "Nothing is chosen here."
    cells = _rates(results, results.validation, [k])
    return table_of("Pass rates of validation problems", results.validation, cells, note, marked)


def kinds_table(record: RunRecord, results: Results) -> Table:
    """Held-out pass@1 for each kind of problem: of each checkpoint, or of the first and the last if they are many."""
    import polars as pl

    assert record.evaluation is not None
    rows_of = record.evaluation.filter(pl.col("split") == "heldout")
    # a page has room for eight columns of numbers with intervals
    shown = results.heldout if len(results.heldout) <= _MOST_COLUMNS else (results.base, results.last)
    rows = []
    for kind in rows_of["kind"].unique().sort():  # sorted: unique() has an order of its own in every process
        scores = score(rows_of.filter(pl.col("kind") == kind), results.base.resampling)
        estimates = {s.checkpoint: s.pass_at(1) for s in scores}
        cells = [estimates.get(s.checkpoint) for s in shown]
        rows.append([kind, whole(max(s.problems for s in scores)), *(with_interval(e) for e in cells)])
    columns = ["kind", "problems>", *(f"{label(results, s.checkpoint)}>" for s in shown)]
    return table(
        "Held-out pass@1 by kind of problem",
        columns,
        rows,
        "In brackets: 95 % interval over the problems of that kind.",
    )


def sets_table(record: RunRecord, results: Results) -> Table | None:
    """Held-out pass@1 of each checkpoint on each problem set; None if there is one set alone."""
    sources = record.sources
    of_set: dict[str, set[str]] = {}
    for problem in results.base.judged_P:
        of_set.setdefault(sources.get(problem, DASH), set()).add(problem)
    if len(of_set) < 2:
        return None
    rows = []
    for one in results.heldout:
        # the same answers, split; each interval is over the set's own problems
        parts = [{p: counts for p, counts in one.judged_P.items() if p in mine} for mine in of_set.values()]
        cells = [with_interval(replace(one, judged_P=part).pass_at(1)) for part in parts]
        rows.append([label(results, one.checkpoint), *cells])
    columns = ["checkpoint", *(f"{name} ({len(mine)})>" for name, mine in of_set.items())]
    note = "Beside a set, how many problems it has; in brackets: 95 % interval over its problems."
    return table("Held-out pass@1 by problem set", columns, rows, note)


def tiles(record: RunRecord, results: Results) -> dict[str, tuple[str, str]]:
    """Collect the largest numbers of the page, each with a detail, by what it is."""
    base, last, change = results.base.pass_at(1), results.last.pass_at(1), difference(results.base, results.last, 1)
    spent, rounds = sum(r.rollouts for r in record.rounds), len(record.rounds)
    shown = {"held-out pass@1, base": (mean_of(base), interval_of(base))}
    if len(results.heldout) > 1 and change:
        mean, low, high = (
            f"{100 * share:+.1f}" for share in (change.change.mean, change.change.low, change.change.high)
        )
        shown["held-out pass@1, trained"] = (mean_of(last), interval_of(last))
        shown["difference"] = (f"{mean} points", f"{low} to {high} points")
    return shown | {"rollouts sampled to train": (whole(spent), f"in {rounds} round{'s' * (rounds != 1)}")}


def conclusions(results: Results) -> tuple[str, ...]:
    """Say in sentences what the numbers mean."""
    if len(results.heldout) < 2:
        return ()
    changes = {k: difference(results.base, results.last, k) for k in sorted({1, results.base.samples}) if k}
    sentences = [_change(k, change, results.base.problems) for k, change in changes.items() if change]
    unjudged, answers = sum(s.verifier_errors for s in results.heldout), sum(s.answers for s in results.heldout)
    if unjudged:
        sentences.append(
            f"{unjudged:,} of {answers:,} held-out answers could not be judged; they count neither as right nor wrong."
        )
    return tuple(sentences)


def _change(k: int, change: PairedDifference, problems: int) -> str:
    gain = change.change
    size = f"{100 * abs(gain.mean):.1f}"
    verb = "did not change" if size == "0.0" else f"{'rose' if gain.mean > 0 else 'fell'} by {size} points"
    text = (
        f"Held-out pass@{k} {verb}, from {percent(change.first)} to {percent(change.second)} (95 % interval of the "
        f"difference over problems: {100 * gain.low:+.1f} to {100 * gain.high:+.1f} points)."
    )
    # else a reader takes it for the difference of the two rates in the table
    if gain.problems < problems:
        text += f" This is over the {gain.problems:,} of {problems:,} problems with {k} judged answers from both."
    may_be_chance = gain.low <= 0 <= gain.high and size != "0.0"
    return text + (" The interval includes 0: this may be chance." if may_be_chance else "")


def samples(record: RunRecord, results: Results) -> tuple[Mapping[str, Any], ...]:
    """Draw problems at random, as many of each kind, with the first answer of the base and of the chosen epoch."""
    import polars as pl

    assert record.evaluation is not None
    # the first answer of each: picking one would show the best or the worst
    ends = (results.base.checkpoint, results.last.checkpoint)
    rows = record.evaluation.filter(
        (pl.col("split") == "heldout") & (pl.col("sample") == 0) & pl.col("checkpoint").is_in(ends)
    )
    drawn = []
    for kind in rows["kind"].unique().sort():
        ids = rows.filter(pl.col("kind") == kind)["problem_id"].unique().to_list()
        # by hash, so that a report that is written again shows the same problems
        drawn += sorted(ids, key=lambda i: derive_seed(record.run.config.seed, "report samples", i))[:_SAMPLES_PER_KIND]
    prompts = tables.read_table(record.run.prompts, tables.PROMPTS, ("problem_id", "prompt"))
    texts = dict(zip(prompts["problem_id"].to_pylist(), prompts["prompt"].to_pylist(), strict=True))
    return tuple(_sample(results, rows.filter(pl.col("problem_id") == p), texts.get(p, "")) for p in drawn)


def _sample(results: Results, rows: "pl.DataFrame", prompt: str) -> Mapping[str, Any]:
    """Make a sample of ``rows``: the answers to one problem, at most one of each checkpoint."""
    by_checkpoint = {row["checkpoint"]: row for row in rows.iter_rows(named=True)}
    problem, kind, ends = rows["problem_id"][0], rows["kind"][0], (results.base, results.last)
    answers = [(s.checkpoint, by_checkpoint[s.checkpoint]) for s in ends if s.checkpoint in by_checkpoint]
    shown = [
        {"checkpoint": label(results, name), "outcome": a["outcome"].replace("_", " "), "text": shortened(a["text"])}
        for name, a in answers
    ]
    counts = [s.judged_P[problem] for s in ends if problem in s.judged_P]
    rights = " → ".join(f"{right} of {judged}" for judged, right in counts)
    return {"problem": f"{problem} ({kind}): right {rights}", "prompt": shortened(prompt), "answers": shown}
