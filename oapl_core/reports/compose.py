"""RunRecord -> report.md: a head, then sections, each found by its name (the kind `section` of oapl_core/plugins)."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from oapl_core import plugins
from oapl_core.markdown import render
from oapl_core.run_folder.run_record import RunRecord

Figure = tuple[str, str, str]
"""PNG beside the report: file name, what it shows in words, caption."""


@dataclass(frozen=True)
class ReportSection:
    """One part of a report."""

    text: str = ""
    """Markdown whose headings begin at the second level; figures that it shows lie beside the report."""
    sentences: tuple[str, ...] = ()
    """Sentences for the head of the report."""


MakeSection = Callable[[RunRecord, Path], ReportSection | None]
"""Function of a run's record and the report's folder, where it may write files; None: there is nothing to show yet."""


def compose(record: RunRecord, folder: Path) -> str:
    """Make the report of what there is so far; its PNGs and the pages of rounds are written to ``folder``."""
    config, rounds = record.run.config, len(record.run.config.rounds)
    objective = " then ".join(dict.fromkeys(one.folder.upper() for one in config.objectives))
    counted = f"{objective}, {rounds} round{'s' * (rounds != 1)}, seed {config.seed}"
    sections = list(_sections(record, folder))
    values = {
        "record": record,
        "subtitle": f"{counted}. Every number is computed from files of this run.",
        "conclusions": [sentence for one in sections for sentence in one.sentences],
        "sections": sections,
    }
    return render("report.md.jinja", values, "oapl_core.reports")


def _sections(record: RunRecord, folder: Path) -> Iterator[ReportSection]:
    for name in plugins.names("section"):
        make: MakeSection = plugins.resolve("section", name)
        # None: its stage has not run yet, and record.missing says so
        if section := make(record, folder):
            yield section
