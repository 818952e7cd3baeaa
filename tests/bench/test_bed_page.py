"""docs/benchmarks/claims_beds.md says what its data say."""

import json
import statistics

import pytest

from bench.claims import bed_page, bed_studies
from bench.claims.bootstrap import estimate
from bench.claims.quantised import DOSES
from bench.claims.studies import arms


def test_every_table_is_what_the_data_give() -> None:
    text = bed_page.PAGE.read_text()
    assert all(f"<!-- table {name} -->" in text for name in bed_page.TABLES)
    assert bed_page.page(text) == text, "run python -m bench.claims.bed_page"


def test_countdowns_problems_weigh_alike_and_its_sets_of_numbers_are_drawn() -> None:
    cells = bed_page.diverse("base", bed_page.distinct)
    assert {len(own) for own in cells.values()} == {64}
    found = bed_page.of_countdown(cells)
    assert found.mean == pytest.approx(statistics.fmean(statistics.fmean(own) for own in cells.values()))
    alone = estimate(cells)  # as if its problems were not alike
    assert found.high - found.low > 1.5 * (alone.high - alone.low)
    for line in bed_page.countdown_table().splitlines()[2:]:
        mean, each = float(line.split("|")[2].split()[0]), [float(x) for x in line.split("|")[3].split(",")]
        assert mean == pytest.approx(statistics.fmean(each), abs=0.1), line


def test_the_arms_of_the_beds_are_those_of_the_criteria() -> None:
    found = {study: arms(study, 1) for study in bed_studies.STUDIES}
    assert set(found["countdown"]) == {"oapl-lag50-seed0", "grpo-off1-seed0"}
    assert len(found["chains"]) == 4
    doses = found["doses"]
    assert len(doses) == 2 * (1 + 2 * len(DOSES))
    for name, arm in doses.items():
        assert ("rescored" in name) == (arm.training.get("reference") == "reference")
        assert json.loads(json.dumps(arm.settings()))["engine_copy"] in (None, name.split("-")[1])
