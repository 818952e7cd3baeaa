"""Writes the report of a run: ``python -m oapl_core.reports.write RUN_DIR``.

Reads the ledger and the run's Parquet files; writes report/index.html, report/report.md, PNG figures and one
report/round_NN.html for each round with rollouts. A run that is not finished gets a report of what there is, which
says what is missing. The report is recorded in the ledger like every artifact; it is out of date as soon as the run has
gone on. What the run's trackers do not have is sent to them.
"""

from oapl_core.files import sha256_of
from oapl_core.progress import say
from oapl_core.reports.compose import compose
from oapl_core.reports.facts import Facts, gather
from oapl_core.reports.forgetting import cards
from oapl_core.reports.markdown import markdown
from oapl_core.reports.page import page
from oapl_core.run_folder.following import observer
from oapl_core.run_folder.run import Run
from oapl_core.stage import run_verb

LAYOUT_VERSION = 2
"""Raised when the same facts would give another report."""


def write(run: Run) -> None:
    """Write the run's report, unless it is there and the run has not gone on since.

    Raises:
        DataError: a file of the run is broken.
    """
    # read first: the report depends on everything that the ledger knows, and on what is missing there
    facts = gather(run)
    inputs, settings = _inputs(facts), {"layout_version": LAYOUT_VERSION, **run.config.report.model_dump(mode="json")}
    if run.is_done(run.report, inputs, settings):
        say(f"report: {run.report / 'index.html'} is up to date")
        _catch_up(run)
        return
    with run.writing(run.report, inputs, settings) as draft:
        draft.path.mkdir()
        report = compose(facts, draft.path)
        (draft.path / "index.html").write_text(page(report), encoding="utf-8")
        (draft.path / "report.md").write_text(markdown(report), encoding="utf-8")
        draft.details = {"complete": not facts.missing, "missing": list(facts.missing)}
    say(f"report: {run.report / 'index.html'}" + (" (partial)" if facts.missing else ""))
    _catch_up(run)


def _catch_up(run: Run) -> None:
    missing = observer("what trackers miss", run, say)
    missing.settle()
    missing.end(False)


def _inputs(facts: Facts) -> dict[str, str]:
    """Everything the ledger knows; a missing evaluation is "missing", so no report without one counts as final."""
    report = facts.run.name(facts.run.report)
    known = {name: entry.sha256 for name, entry in facts.artifacts.items() if name != report}
    apart = {
        facts.run.name(path): sha256_of(path) for path in cards(facts.run)
    }  # evaluations with ledgers of their own
    return {facts.run.name(facts.run.evaluation()): "missing", **known, **apart}


if __name__ == "__main__":
    raise SystemExit(run_verb(write, has_round=False))
