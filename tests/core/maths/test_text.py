"""The plain form of a text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oapl_core.maths.text import compact, plain
from oapl_core.maths.units import Allowed, split_unit
from tests.core.maths.test_rules_page import rows
from tests.reference_sets import math500

NOT_AT_ONCE = {
    "{.a.}": ".a",  # what was the end of a group is the end of the answer
    "=={=a}": "a",
    "√$3x$": r"\sqrt{3}x",  # a dollar sign parted the root from its number
}
"""Texts whose plain form has a plainer one. No answer of a known set is among them."""


def assert_is_plain(text: str) -> None:
    found = plain(text)
    assert plain(found) == found
    assert compact(compact(found)) == compact(found)


@given(
    st.text(alphabet=st.sampled_from(list(r"\{}()[]$%^_'\".,;:=<>+-*/ 0123456789abxtexcircfrsqπ√°€½²")), max_size=200)
)
def test_any_text_comes_to_a_plain_form_that_is_its_own(text: str) -> None:
    forms = [plain(text)]
    while plain(forms[-1]) != forms[-1]:  # hardly ever
        forms.append(plain(forms[-1]))
        assert len(forms) <= 1 + len(text), "it comes to no end"
    split_unit(forms[-1], Allowed())


@pytest.mark.parametrize("column", ["Gold", "Accepted", "Rejected"])
def test_the_plain_form_of_an_example_is_its_own(column: str) -> None:
    for row in rows():
        assert_is_plain(row[column])


def test_the_plain_form_of_a_known_answer_is_its_own() -> None:
    for row in math500():
        assert_is_plain(row["answer"])


@pytest.mark.parametrize(("text", "plainer"), NOT_AT_ONCE.items(), ids=range(len(NOT_AT_ONCE)))
def test_a_few_odd_texts_need_a_second_look(text: str, plainer: str) -> None:
    assert plain(text) != plain(plain(text)) == plain(plainer)
    assert_is_plain(plain(text))


def test_braces_in_braces_are_taken_off_one_by_one() -> None:
    assert (compact("x^{{a}}"), compact(compact("x^{{a}}"))) == ("x^{a}", "x^a")
