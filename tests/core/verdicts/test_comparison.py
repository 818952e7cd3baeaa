"""Comparison: parity with LiveCodeBench's checker for text, JSON equality for values, bounded work for both."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oapl_core.verdicts.comparison import result_equal, stdout_equal


@pytest.mark.parametrize(
    ("printed", "expected"),
    [
        (b"7\n", "7"),
        (b"  7  \n\n", "7\n"),
        (b"1 2\n 3 4 ", "1 2\n3 4\n"),
        (b"1.0", "1"),
        (b"1  2", "1 2"),
        (b"1e3 0.10", "1000 0.1"),
        (b"a\r\nb", "a\nb"),
        (b"", ""),
    ],
)
def test_equal_up_to_outer_blanks_and_decimal_value(printed: bytes, expected: str) -> None:
    assert stdout_equal(printed, expected)


@pytest.mark.parametrize(
    ("printed", "expected"),
    [
        (b"NO", "YES"),
        (b"yes", "YES"),
        (b"1", "1\n2"),
        (b"1\n2\n3", "1\n2"),
        (b"1 2 3", "1 2"),
        (b"1", "1 2"),
        (b"1000001", "1000000"),
        (b"a 1.0", "a 1"),
        (b"a\n\nb", "a\nb"),
        (b"7\x00", "7"),
        (b"\xff7", "7"),
        (b"sNaN", "1"),
        (b"NaN", "1"),
        (b"0.30000000000000004", "0.3"),
    ],
)
def test_unequal(printed: bytes, expected: str) -> None:
    assert not stdout_equal(printed, expected)


@given(st.text())
def test_every_text_equals_itself(text: str) -> None:
    assert stdout_equal(text.encode("utf-8", "surrogatepass") if text.isascii() else text.encode(), text)


@given(st.binary(max_size=200), st.text(max_size=50))
def test_no_output_makes_the_comparison_fail(printed: bytes, expected: str) -> None:
    stdout_equal(printed, expected)
    result_equal(printed, expected or "0")


def test_a_huge_output_is_unequal_in_little_time() -> None:
    start = time.perf_counter()
    assert not stdout_equal(b"1 " * (8 << 20), "1 2")
    assert not stdout_equal(b"1\n" * (8 << 20), "1\n2")
    assert not result_equal(b"[" + b"[]," * (5 << 20) + b"[]]", "[[]]")
    assert time.perf_counter() - start < 3


@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        (b"[1, [2, 3]]", "[1,[2,3]]"),
        (b"1.0", "1"),
        (b'{"b": 1, "a": 2}', '{"a": 2, "b": 1}'),
        (b'"\\u00e9"', '"é"'),
        (b"null", "null"),
        (b"9" * 5000, "9" * 5000),
    ],
)
def test_equal_json(returned: bytes, expected: str) -> None:
    assert result_equal(returned, expected)


@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        (None, "null"),
        (b"", "null"),
        (b"[1]", "[1, 2]"),
        (b'"1"', "1"),
        (b"0.30000000000000004", "0.3"),
        (b"NaN", "NaN"),
        (b"[" * 100000, "[]"),
        (b"9" * 4999 + b"8", "9" * 5000),
        (b'["integer", "' + b"9" * 5000 + b'"]', "9" * 5000),
        (b"\xff", "1"),
    ],
)
def test_unequal_json(returned: bytes | None, expected: str) -> None:
    assert not result_equal(returned, expected)
