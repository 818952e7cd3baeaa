"""docs/maths.md is true: every example of its tables is judged as its column says."""

import re

import pytest

from oapl_core.verdicts.answers import answer_rules
from oapl_core.verdicts.workers.maths_pool import MathsPool
from tests.reference_sets import ROOT

_CODE = re.compile(r"`([^`]*)`")


def rows() -> list[dict[str, str]]:
    """The rows of every table that has accepted and rejected examples, by column."""
    found, columns = list[dict[str, str]](), list[str]()
    for line in (ROOT / "docs/maths.md").read_text().splitlines():
        if not line.startswith("|"):
            columns = []
        elif not columns:
            columns = [cell.strip() for cell in line.strip("|").split("|")]
        elif "Accepted" in columns and not line.startswith("|---"):
            rule, *_ = line.strip("|").split("|")
            codes = _CODE.findall(line.partition("|")[2].partition("|")[2])
            found.append({"Rule": rule.strip()} | dict(zip(columns[1:], codes, strict=True)))
    return found


def test_the_page_has_rules() -> None:
    assert len(rows()) > 40


@pytest.mark.parametrize("row", rows(), ids=lambda row: row["Rule"])
def test_every_example_of_the_page_is_judged_as_it_says(pool: MathsPool, row: dict[str, str]) -> None:
    for column, right in (("Accepted", True), ("Rejected", False)):
        response = row[column] if "\\boxed" in row[column] else f"\\boxed{{{row[column]}}}"
        response = response.replace("0…0", "0" * 600)
        answer = answer_rules.maths(response)
        assert (answer is not None and pool.equal(row["Gold"], answer, row.get("Statement", ""))) is right, column
    assert pool.broken == pool.deaths == pool.too_slow == 0
