"""Output equality: parity with LiveCodeBench's checker for text, JSON equality for values, bounded work for both."""

import json
import time
from decimal import Decimal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from oapl_core import plugins
from oapl_core.verdicts.called_functions import result_equal
from oapl_core.verdicts.output_equality import Tolerance, stdout_equal
from oapl_extras.audit.audit import same_json

NEAR = Tolerance()
MODES = (None, NEAR)


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
    assert all(stdout_equal(printed, expected, mode) for mode in MODES)


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
        (b"a 1", "b 1"),
        (b"1 2\n4", "1 2\n3"),
        (b"1000000.5", "1000000"),
        (b"100000.0 7", "100000.0 8"),
        (b"inf", "1e308"),
        (b"1e999", "1.0e999999"),
        (b"0.5", "0.51"),
        (b"", "0.0000001"),
        (b"a\n\nb", "a\nb"),
        (b"7\x00", "7"),
        (b"\xff7", "7"),
        (b"sNaN", "1"),
        (b"NaN", "1"),
        (b"NaN", "1.5"),
        (b"1.5", "NaN"),
        (b"sNaN", "NaN"),
        (b"nan 1", "NaN 2"),
        (b"not a number", "NaN"),
        (b"inf", "-inf"),
    ],
)
def test_unequal(printed: bytes, expected: str) -> None:
    assert not any(stdout_equal(printed, expected, mode) for mode in MODES)


@pytest.mark.parametrize(
    ("printed", "expected"), [(b"nan", "NaN"), (b"NaN 1.0", "nan 1"), (b"1\nNAN", "1\nnan"), (b"Infinity", "inf")]
)
def test_where_nan_is_expected_nan_is_right_in_any_case(printed: bytes, expected: str) -> None:
    assert all(stdout_equal(printed, expected, mode) for mode in MODES)


@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        (b"NaN", "NaN"),
        (b'[1, {"a": NaN}]', '[1, {"a": NaN}]'),
        (b"-Infinity", "-Infinity"),
        (b"[NaN, 2.0]", "[NaN, 2]"),
    ],
)
def test_where_nan_is_expected_nan_is_returned(returned: bytes, expected: str) -> None:
    assert result_equal(returned, expected)


@given(
    st.binary(max_size=80),
    st.sampled_from(["1 2.5", "YES", "NaN", "[1, 2.5]", '{"a": [NaN, "x"]}', "1e400", "9" * 5000]),
)
def test_whatever_a_program_writes_is_compared_without_an_exception(written: bytes, expected: str) -> None:
    for mode in MODES:
        assert stdout_equal(written, expected, mode) in (True, False)
        assert result_equal(written, expected, mode) in (True, False)
    for name in plugins.names("checker"):
        checker = plugins.resolve("checker", name)
        assert checker("", expected, written.decode("utf-8", "surrogateescape")) in (True, False)


ODD = st.lists(
    st.sampled_from(["NaN", "-", "1e999999999", "Infinity", "[", "]", ",", "9" * 400, ".", "1", '"', "{", ":"])
)


@given(ODD.map("".join), ODD.map(" ".join))
def test_numbers_that_are_none_are_compared_without_an_exception(ours: str, theirs: str) -> None:
    for mode in MODES:
        assert stdout_equal(ours.encode(), theirs, mode) in (True, False)
        assert stdout_equal(theirs.encode(), ours, mode) in (True, False)
        assert result_equal(ours.encode(), theirs, mode) in (True, False)


@pytest.mark.parametrize(
    ("printed", "expected"),
    [
        (b"0.30000000000000004", "0.3"),
        (b"1234567.8", "1234567.0"),
        (b"0.0000009", "0.0"),
        (b"a 1.0", "a 1"),
        (b"Case 1: 2.00000001", "Case 1: 2.0"),
        (b"1e-7 -3", "0.0 -3"),
    ],
)
def test_only_the_tolerant_mode_forgives_rounding(printed: bytes, expected: str) -> None:
    assert [stdout_equal(printed, expected, mode) for mode in MODES] == [False, True]


def test_the_larger_allowance_counts_and_no_more() -> None:
    assert stdout_equal(b"100.9", "100.0", Tolerance(absolute=0.0, relative=0.01))
    assert stdout_equal(b"100.9", "100.0", Tolerance(absolute=1.0, relative=0.0))
    assert not stdout_equal(b"101.1", "100.0", Tolerance(absolute=1.0, relative=0.01))
    assert not stdout_equal(b"100.1", "100.0", Tolerance(absolute=0.0, relative=0.0))


def harness_equal(printed: str, expected: str) -> bool:
    """LiveCodeBench's rules, written down from its grade_stdio, but for NaN, which is a number like others here."""
    ours = [line.strip() for line in printed.strip().split("\n")]
    theirs = [line.strip() for line in expected.strip().split("\n")]
    if len(ours) != len(theirs):
        return False
    for a, b in zip(ours, theirs, strict=True):
        if a != b:
            try:
                numbers = [["nan" if token == "NaN" else Decimal(token) for token in line.split()] for line in (a, b)]
            except ArithmeticError:
                return False
            if numbers[0] != numbers[1]:
                return False
    return True


PIECES = ["1", "1.0", "01", "1e0", "-0", "0", "a", "A", "NaN", " ", "\n", "\t", "2"]
TEXTS = st.lists(st.sampled_from(PIECES)).map("".join)


@given(TEXTS, TEXTS)
@example("1 NaN 1", "1 NaN  1")
def test_the_parity_mode_is_the_harness(printed: str, expected: str) -> None:
    assert stdout_equal(printed.encode(), expected) == harness_equal(printed, expected)


@given(TEXTS, TEXTS)
def test_what_parity_accepts_the_tolerant_mode_accepts(printed: str, expected: str) -> None:
    assert stdout_equal(printed.encode(), expected, NEAR) or not stdout_equal(printed.encode(), expected)


@given(st.text())
def test_every_text_equals_itself(text: str) -> None:
    assert stdout_equal(text.encode("utf-8", "surrogatepass") if text.isascii() else text.encode(), text)


@given(st.binary(max_size=200), st.text(max_size=50))
def test_no_output_makes_the_comparison_fail(printed: bytes, expected: str) -> None:
    for mode in MODES:
        stdout_equal(printed, expected, mode)
        result_equal(printed, expected or "0", mode)


def test_a_huge_output_is_unequal_in_little_time() -> None:
    start = time.process_time()  # what else the machine does counts little; a quadratic way would take hours
    assert not any(stdout_equal(b"1 " * (8 << 20), "1 2", mode) for mode in MODES)
    assert not stdout_equal(b"1\n" * (8 << 20), "1\n2", NEAR)
    assert not result_equal(b"[" + b"[]," * (5 << 20) + b"[]]", "[[]]")
    assert time.process_time() - start < 20


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
    assert all(result_equal(returned, expected, mode) for mode in MODES)


@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        (None, "null"),
        (b"", "null"),
        (b"[1]", "[1, 2]"),
        (b'"1"', "1"),
        (b"1000001", "1000000"),
        (b"1.0000001", "1"),
        (b"[0.5]", "0.5"),
        (b'{"a": 0.5}', '{"b": 0.5}'),
        (b"9" * 400, "1e300"),
        (b"NaN", "null"),
        (b'"NaN"', "NaN"),
        (b"[NaN, 1]", "[NaN, 2]"),
        (b"Infinity", "-Infinity"),
        (b"[" * 100000, "[]"),
        (b"9" * 4999 + b"8", "9" * 5000),
        (b'["integer", "' + b"9" * 5000 + b'"]', "9" * 5000),
        (b"\xff", "1"),
    ],
)
def test_unequal_json(returned: bytes | None, expected: str) -> None:
    assert not any(result_equal(returned, expected, mode) for mode in MODES)


@pytest.mark.parametrize(
    ("returned", "expected"),
    [(b"0.30000000000000004", "0.3"), (b'[{"a": [2.0000001, 1]}]', '[{"a": [2.0, 1]}]'), (b"2", "2.000001")],
)
def test_only_the_tolerant_mode_forgives_rounding_in_values(returned: bytes, expected: str) -> None:
    assert [result_equal(returned, expected, mode) for mode in MODES] == [False, True]


@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        ({1: 0, "1": 1}, '{"1": 1}'),
        ([{"a": [{None: 1, "null": 2}]}], '[{"a": [{"null": 2}]}]'),
        ({True: 1, "true": 1}, '{"true": 1}'),
    ],
)
def test_a_dict_whose_keys_are_one_in_json_equals_nothing(returned: object, expected: str) -> None:
    text = json.dumps(returned)
    assert not any(result_equal(text.encode(), expected, mode) for mode in MODES)
    assert not same_json(text, expected)


@pytest.mark.parametrize("returned", ['{"1": 1}', '[{"1": 1}, {"1": 1}]', "{}", '"{1, 1}"'])
def test_a_dict_whose_keys_differ_equals_itself(returned: str) -> None:
    assert all(result_equal(returned.encode(), returned, mode) for mode in MODES) and same_json(returned, returned)
