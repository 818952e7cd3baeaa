"""Section of a report: what the run has cost, where it used GPUs or a judge beside what `oapl plan` estimates."""

from pathlib import Path

from oapl_core.markdown import render
from oapl_core.plugins import resolve
from oapl_core.reports.blocks import Table, table
from oapl_core.reports.compose import ReportSection
from oapl_core.run_folder.run_record import RunRecord
from oapl_extras.stop.costs import costs


def section(record: RunRecord, _folder: Path) -> ReportSection:
    """Show the costs until now."""
    return ReportSection(render("costs.md.jinja", {"costs": costs_table(record)}, "oapl_extras.stop"))


def costs_table(record: RunRecord) -> Table:
    """Tabulate hours, GPU-hours by stage, a judge's requests and bytes, with the estimate of GPU-hours and bytes."""
    cost = costs(record.run)
    # the estimate is one of GPUs: where none was used it says nothing
    planned = (resolve("setting", "estimate")(record.run) if cost.gpu_s else None) or {}
    rows = [("hours of all stages", f"{cost.wall_s / 3600:.2f}", "")]
    if cost.gpu_s:
        hours = {"GPU": cost.gpu_hours} | {stage: seconds / 3600 for stage, seconds in cost.gpu_s.items()}
        for name, used in hours.items():
            title = "GPU-hours" if name == "GPU" else f"GPU-hours of {name}"
            rows.append((title, f"{used:.2f}", _planned(planned, name)))
    if cost.judge:
        rows.append(("requests to the judge", f"{cost.judge_calls:,}", ""))
        rows.append(("tokens of the judge", f"{cost.judge_tokens:,}", ""))
    rows.append(("GB of the run folder", f"{cost.bytes / 1e9:.2f}", _planned(planned, "GB")))
    note = "Processes that died with whoever had started them are not counted. Planned: `oapl plan`, for the whole run."
    return table("What the run has cost", ("", "until now>", "planned>"), rows, note)


def _planned(planned: dict[str, float], name: str) -> str:
    return f"{planned[name]:.2f}" if name in planned else ""
