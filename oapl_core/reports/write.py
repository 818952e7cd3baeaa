"""Writes the report of a run: ``python -m oapl_core.reports.write RUN_DIR``.

Reads the ledger and the run's Parquet files; writes report/index.html, report/report.md, PNG figures and one
report/round_NN.html for each round with rollouts. A run that is not finished gets a report of what there is, which
says what is missing. The report is recorded in the ledger like every artifact; it is out of date as soon as the run has
gone on. What the run's trackers do not have is sent to them.
"""

from oapl_core import plugins
from oapl_core.files import sha256_of
from oapl_core.markdown import html
from oapl_core.progress import say
from oapl_core.reports.compose import compose
from oapl_core.reports.results import cards
from oapl_core.run_folder.following import catch_up
from oapl_core.run_folder.run import Run
from oapl_core.run_folder.run_record import RunRecord
from oapl_core.stage import run_verb

LAYOUT_VERSION = 3
"""Raised when the same record would give another report."""


def write(run: Run) -> None:
    """Write the run's report, unless it is there and the run has not gone on since.

    Raises:
        DataError: a file of the run is broken.
    """
    record = RunRecord(run)
    # read first: the report depends on everything that the ledger knows, and on what is missing there
    missing, inputs = list(record.missing), _inputs(record)
    settings = {"layout_version": LAYOUT_VERSION, **run.config.report.model_dump(mode="json")}
    # sections of installed packages: a report without them is not the same
    if own := [name for name in plugins.names("section") if name not in plugins.BUILT_IN["section"]]:
        settings["sections"] = own
    if run.is_done(run.report, inputs, settings):
        say(f"report: {run.report / 'index.html'} is up to date")
        catch_up(run, say)
        return
    with run.writing(run.report, inputs, settings) as draft:
        draft.path.mkdir()
        text = compose(record, draft.path)
        (draft.path / "report.md").write_text(text, encoding="utf-8")
        (draft.path / "index.html").write_text(html(text), encoding="utf-8")
        draft.details = {"complete": not missing, "missing": missing}
    say(f"report: {run.report / 'index.html'}" + (" (partial)" if missing else ""))
    catch_up(run, say)


def _inputs(record: RunRecord) -> dict[str, str]:
    """Everything the ledger knows; a missing evaluation is "missing", so no report without one counts as final."""
    report = record.run.name(record.run.report)
    known = {name: entry.sha256 for name, entry in record.artifacts.items() if name != report}
    # evaluations with ledgers of their own
    apart = {record.run.name(path): sha256_of(path) for path in cards(record.run)}
    return {record.run.name(record.run.evaluation()): "missing", **known, **apart}


if __name__ == "__main__":
    raise SystemExit(run_verb(write, has_round=False))
