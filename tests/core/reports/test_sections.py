"""Sections of a report: one of an installed package stands after those that ship, and makes the report another one."""

from pathlib import Path

import pytest

from oapl_core import plugins
from oapl_core.reports.sections.provenance import by_round
from oapl_core.reports.write import write
from oapl_core.settings.experiment_file import parse_experiment
from tests.installed_package import installed
from tests.synthetic_run import write_synthetic_run

SOURCE = """
from oapl_core.reports.compose import ReportSection

def section(record, folder):
    return ReportSection(f"## Shine\\n\\n{record.run.root.name} shines.", ("It shines.",))

def nothing(record, folder):
    return None
"""


def test_settings_that_differ_by_round_are_a_table_of_what_each_round_has() -> None:
    rounds = [{}, *[{"sampling": {"max_tokens": 16384}, "reward": {"parts": {"length": 0.1}}}] * 2]
    values = {"name": "r", "model": "m", "problems": {"train": "t", "heldout": "h"}, "rounds": rounds}
    columns, rows = by_round(parse_experiment(values, "test"))
    assert columns == ("rounds", "sampling.max_tokens>", "reward.parts.length>")
    assert rows == [["0", "32000", "unset"], ["1-2", "16384", "0.1"]]
    assert by_round(parse_experiment(values | {"rounds": [{}, {}]}, "test"))[1] == []


@pytest.mark.slow
def test_a_package_s_section_stands_after_those_that_ship(tmp_path: Path) -> None:
    run = write_synthetic_run(tmp_path / "runs")
    write(run)
    plain = (run.report / "report.md").read_text()
    with installed(tmp_path, SOURCE, "[oapl.section]\nshine = shiny:section\ndark = shiny:nothing\n"):
        assert plugins.names("section")[-2:] == ("shine", "dark")
        write(run)
        text = (run.report / "report.md").read_text()
        assert text.endswith("## Shine\n\nsynthetic-seed0 shines.\n")
        assert text.index("It shines.") < text.index("## ")
        before = run.ledger.path.read_bytes()
        write(run)
        assert run.ledger.path.read_bytes() == before, "up to date"
    write(run)
    assert (run.report / "report.md").read_text() == plain, "the package is gone, and so is its section"
