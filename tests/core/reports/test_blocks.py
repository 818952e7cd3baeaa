"""Numbers and texts as a person reads them; Markdown that model text cannot break."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oapl_core.markdown import fenced, html, plain, render
from oapl_core.reports.blocks import duration, interval, percent, shortened, table, whole
from oapl_core.reports.sections.provenance import differing_settings, versions
from oapl_core.storable import printable
from tests.core.reports.test_write import Page
from tests.synthetic_run import experiment


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.0 s"),
        (59.94, "59.9 s"),
        (59.97, "1 min 00 s"),
        (185, "3 min 05 s"),
        (3599.6, "1 h 00 min"),
        (7620, "2 h 07 min"),
    ],
)
def test_durations_read_naturally(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_shares_are_percent_and_counts_have_thousands() -> None:
    assert (percent(0.3125), percent(None), interval(0.251, 0.37), whole(1234567), whole(None)) == (
        "31.2 %",
        "–",
        "25.1 to 37.0 %",
        "1,234,567",
        "–",
    )


@given(st.text(), st.text())
def test_no_text_escapes_its_fence(text: str, other: str) -> None:
    body = fenced(text).split("\n")
    assert body[0] == body[-1] + "text"
    assert body[-1] not in "\n".join(body[1:-1])


@given(st.text(alphabet=st.characters(exclude_categories=())))
def test_no_text_breaks_a_table_row_or_carries_markup(text: str) -> None:
    shown = plain(text)
    assert "\n" not in shown
    assert not re.search(r"(?<!\\)(?:\\\\)*[|<>`*_\[\]]", shown)


@given(st.text(alphabet=st.characters(exclude_categories=())))
def test_printable_text_can_be_encoded_and_has_no_control_characters(text: str) -> None:
    shown = printable(text)
    shown.encode()
    assert all(c.isprintable() or c in "\n\t" for c in shown)


def page(text: str) -> str:
    """A page with a text wherever a page may have one."""
    shown = table(text, ["a", "b>"], [[text, text]], marked=0)
    values = {"title": text, "headline": text, "counts": shown, "solved": None, "training": None, "heldout": None}
    figures = {"dropped_figures": [("dropped.png", text, text)], "training_figure": None}
    return html(render("round.md.jinja", {**values, **figures, "places": [text]}, "oapl_extras.prefect_pages"))


@given(st.text(alphabet="<>&\"'/=ab#|*_`[]()!\\~-+1. \t\n", min_size=1))
def test_no_text_becomes_a_tag_of_the_page(text: str) -> None:
    shown, plain_one = (Page(page(one)) for one in (f"x{text}", "x"))
    assert [tag for tag, _ in shown.tags] == [tag for tag, _ in plain_one.tags]


def test_long_text_is_cut_and_says_how_much_is_left_out() -> None:
    assert shortened("abcdef", 4) == "abcd\n… (2 more characters)"
    assert shortened("abcd", 4) == "abcd"


def test_a_table_with_a_short_row_is_our_own_bug() -> None:
    with pytest.raises(AssertionError, match="cells"):
        table("t", ["a", "b"], [["1"]])


def test_markdown_tables_align_numbers_and_mark_one_row() -> None:
    text = page("x|y")
    assert '<th style="text-align:right" scope="col">b</th>' in text and '<th scope="col">a</th>' in text
    assert "<td><strong>x|y</strong></td>" in text, "the marked row, whose cell keeps its bar"


def test_only_settings_that_differ_from_the_defaults_are_listed(tmp_path: object) -> None:
    from pathlib import Path

    rows = {key: (value, default) for key, value, default in differing_settings(experiment(Path("runs")))}
    assert rows["training.learning_rate"] == ("0.0003", "1e-06")
    assert rows["name"] == ("synthetic", "–")
    assert rows["rounds.1.epochs"] == ("3", "1")
    assert rows["rounds.0"] == ("all defaults", "–")
    assert "training.weight_decay" not in rows
    assert "seed" not in rows


def test_versions_name_what_is_installed() -> None:
    found = dict(versions())
    assert {"python", "polars", "pyarrow"} <= found.keys()
    assert all(found.values())
