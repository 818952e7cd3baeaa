"""docs/benchmarks/claims_beds.md says what its data say."""

import json

from bench.claims import bed_page, bed_studies
from bench.claims.quantised import DOSES
from bench.claims.studies import arms


def test_every_table_is_what_the_data_give() -> None:
    text = bed_page.PAGE.read_text()
    assert all(f"<!-- table {name} -->" in text for name in bed_page.TABLES)
    assert bed_page.page(text) == text, "run python -m bench.claims.bed_page"


def test_the_arms_of_the_beds_are_those_of_the_criteria() -> None:
    found = {study: arms(study, 1) for study in bed_studies.STUDIES}
    assert set(found["countdown"]) == {"oapl-lag50-seed0", "grpo-off1-seed0"}
    assert len(found["chains"]) == 4
    doses = found["doses"]
    assert len(doses) == 2 * (1 + 2 * len(DOSES))
    for name, arm in doses.items():
        assert ("rescored" in name) == (arm.training.get("reference") == "reference")
        assert json.loads(json.dumps(arm.settings()))["engine_copy"] in (None, name.split("-")[1])
