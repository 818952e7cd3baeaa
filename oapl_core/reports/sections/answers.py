"""Sample answers of a run: held-out problems drawn at random, with what the base and the chosen epoch said."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oapl_core import tables
from oapl_core.markdown import render
from oapl_core.reports.blocks import shortened
from oapl_core.reports.compose import ReportSection
from oapl_core.reports.results import Results, label, results
from oapl_core.run_folder.run_record import RunRecord
from oapl_core.seeds import derive_seed

if TYPE_CHECKING:
    import polars as pl

_SAMPLES_PER_KIND = 2


def section(record: RunRecord, _folder: Path) -> ReportSection | None:
    """Show some answers; None before the evaluation."""
    measured = results(record)
    if measured is None:
        return None
    values = {"samples": samples(record, measured)}
    return ReportSection(render("answers.md.jinja", values, "oapl_core.reports.sections"))


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
