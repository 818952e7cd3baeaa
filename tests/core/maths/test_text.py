"""The plain form of a text."""

from hypothesis import given
from hypothesis import strategies as st

from oapl_core.maths.text import compact, plain
from oapl_core.maths.units import Allowed, split_unit


@given(
    st.text(alphabet=st.sampled_from(list(r"\{}()[]$%^_'\".,;:=<>+-*/ 0123456789abxtexcircfrsqπ√°€½²")), max_size=200)
)
def test_any_text_has_a_plain_form(text: str) -> None:
    found = plain(text)
    assert split_unit(found, Allowed())[0] is not None
    assert compact(found) == compact(compact(found)) or "(" in found
