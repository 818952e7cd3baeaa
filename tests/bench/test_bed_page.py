"""docs/benchmarks/claims_beds.md says what its data say."""

from bench.claims import bed_page


def test_every_table_is_what_the_data_give() -> None:
    text = bed_page.PAGE.read_text()
    assert all(f"<!-- table {name} -->" in text for name in bed_page.TABLES)
    assert bed_page.page(text) == text, "run python -m bench.claims.bed_page"
