"""Time of a run: what each stage took, and what the starts of engines were spent on."""

import json
from collections.abc import Sequence
from pathlib import Path

from oapl_core.markdown import render
from oapl_core.planning.plan import Step, times
from oapl_core.reports.blocks import DASH, Table, duration, percent, table, whole
from oapl_core.reports.compose import ReportSection
from oapl_core.run_folder.ledger import ArtifactEntry
from oapl_core.run_folder.run_record import RunRecord


def section(record: RunRecord, _folder: Path) -> ReportSection:
    """Show where the time went."""
    values = {"times": time_table(record), "starts": starts_table(record)}
    return ReportSection(render("timing.md.jinja", values, "oapl_core.reports.sections"))


def time_table(record: RunRecord) -> Table:
    """Wall time of each stage, every process of it counted, and the part of it spent on its artifacts."""
    measured = list(times(record.run))
    total = sum(time.added_s for time in measured)
    rows = []
    for time in measured:
        # a step with options shares its outputs with the plain step, whose row counts them
        mine = [] if time.step.options else _mine(record, time.step)
        share = percent(time.added_s / total if total else None, 0)
        own = (_start_up(mine), duration(sum(entry.seconds for entry in mine)), whole(len(mine)))
        rows.append((time.step.title, duration(time.seconds), share, *own, whole(time.processes)))
    rows.append(("all", duration(total), "", "", "", "", ""))
    note = (
        "Start-up: of engine or trainer, where recorded. Writing: writing and hashing files. What runs in parallel "
        "with another stage counts in share and sum only as far as it outlasts it. Without this report."
    )
    columns = ("stage", "wall time>", "share>", "start-up>", "writing>", "artifacts>", "processes>")
    return table("Where the time went", columns, rows, note)


def starts_table(record: RunRecord) -> Table:
    """Tabulate the seconds of each stage's engine starts by what they were spent on; no rows before one is recorded."""
    starts = [
        (time.step.title, _starts(_mine(record, time.step))) for time in times(record.run) if not time.step.options
    ]
    phases = list(dict.fromkeys(phase for _, own in starts for one in own for phase in one))
    rows = [
        (title, whole(len(own)), *(_mean_time([one[phase] for one in own if phase in one]) for phase in phases))
        for title, own in starts
        if own
    ]
    note = (
        "Mean of the stage's starts. Import: of vLLM. Cache: making room for keys and values, and what else vLLM's own "
        "lines leave of its start. Engine: what no line of vLLM accounts for."
    )
    return table("How engines started", ("stage", "starts>", *(f"{phase}>" for phase in phases)), rows, note)


def _starts(entries: Sequence[ArtifactEntry]) -> list[dict[str, float]]:
    """List each process's start-up times once; a process's artifacts repeat them, other numbers are other processes."""
    # dumps: a dict cannot be in a set
    found = {json.dumps(e.details["startup_s"], sort_keys=True): e for e in entries if "startup_s" in e.details}
    return [entry.details["startup_s"] for entry in found.values()]


def _mean_time(seconds: Sequence[float]) -> str:
    return duration(sum(seconds) / len(seconds)) if seconds else DASH


def _mine(record: RunRecord, step: Step) -> list[ArtifactEntry]:
    return [entry for name, entry in record.artifacts.items() if name.startswith(step.outputs)]


def _start_up(entries: Sequence[ArtifactEntry]) -> str:
    engines = _starts(entries)
    trainers = {float(e.details["start_up_s"]) for e in entries if "start_up_s" in e.details}
    if not engines and not trainers:
        return DASH
    return duration(sum(sum(engine.values()) for engine in engines) + sum(trainers))
