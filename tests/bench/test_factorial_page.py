"""The factorial's page has the tables that its results give."""

from bench.claims import factorial_page


def test_every_table_is_what_the_data_give() -> None:
    text = factorial_page.PAGE.read_text()
    assert factorial_page.page(text) == text


def test_an_edge_is_named() -> None:
    assert factorial_page.edges("oapl beta2=0.03 rate=0.0005") == ["least beta2"]
    assert factorial_page.edges("topr rate=0.004") == ["most rate"]
    assert factorial_page.edges("asymmetric beta2=0.01 below=0.3 rate=0.001") == ["most rate"]
