"""The factorial's page has the tables that its results give."""

from bench.claims import factorial_page


def test_every_table_is_what_the_data_give() -> None:
    text = factorial_page.PAGE.read_text()
    assert factorial_page.page(text) == text


def test_an_edge_is_of_what_was_tried() -> None:
    known = ["oapl beta2=0.1 rate=0.001", "oapl beta2=0.1 rate=0.002", "oapl beta2=0.3 rate=0.002"]
    known += ["oapl beta2=0.3 rate=0.004"]
    assert factorial_page.edges("oapl beta2=0.3 rate=0.002", known) == ["most beta2"]
    assert factorial_page.edges("oapl beta2=0.1 rate=0.001", known) == ["least beta2", "least rate"]
    assert factorial_page.edges("oapl beta2=0.3 rate=0.002", known[2:]) == ["least rate"]
