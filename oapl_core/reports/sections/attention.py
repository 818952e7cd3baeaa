"""Sentences at the head of a report: alarms of the rounds, and warnings of the stages as the ledger says them."""

from pathlib import Path

from oapl_core.planning.warnings import batch_too_large, left_out_statements
from oapl_core.reports.alarms import alarms
from oapl_core.reports.compose import ReportSection
from oapl_core.run_folder.run_record import RunRecord


def section(record: RunRecord, _folder: Path) -> ReportSection:
    """Collect what a person should look at."""
    told = [alarm.line for one in record.rounds for alarm in alarms(record, one.number)]
    return ReportSection(sentences=(*told, *warnings(record)))


def warnings(record: RunRecord) -> list[str]:
    """List the warnings of the stages, as the ledger says them."""
    run, config = record.run, record.run.config
    problems = record.artifacts.get(run.name(run.problems))
    found = [left_out_statements(problems.details)] if problems else []
    for number in range(len(config.rounds)):
        entry = record.artifacts.get(run.name(run.checkpoint(number, 1)))
        if entry:
            found.append(batch_too_large(f"round {number}", entry.rows, config.of_round(number).training.batch_size))
    return [line for line in found if line]
