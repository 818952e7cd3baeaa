"""docs/benchmarks/data.md says what its data say."""

from bench.rounds import PAGE, page


def test_every_table_is_what_the_data_give() -> None:
    text = PAGE.read_text()
    assert text.count("<!-- table ") == 3
    assert page(text) == text, "run python -m bench.rounds --page"
