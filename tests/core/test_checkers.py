"""Checkers: each accepts every correct answer it stands for and no other."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oapl_core import plugins
from oapl_core.errors import ConfigError

CHECKERS = {name: plugins.resolve("checker", name) for name in plugins.names("checker")}


@pytest.mark.parametrize(
    ("name", "expected", "right", "wrong"),
    [
        ("unordered_lines", "a b\nc\n", ["c\na b", "a b \n c\n\n"], ["a b", "a b\nc\nc", "b a\nc", ""]),
        ("unordered_tokens", "1 2\n3\n", ["3 2 1", "1\n2\n3"], ["1 2", "1 2 3 3", "12 3"]),
        ("any_line", "1 2\n2 1\n", ["1 2\n", " 2 1"], ["1 2\n2 1", "1", "1  2", ""]),
        ("any_permutation", "1 2\n3\n", ["2 1\n3", "1 2\n3\n"], ["3\n1 2", "1 2 3", "1 2 2\n3"]),
    ],
)
def test_right_and_wrong(name: str, expected: str, right: list[str], wrong: list[str]) -> None:
    checker = CHECKERS[name]
    assert all(checker("", expected, printed) for printed in right)
    assert not any(checker("", expected, printed) for printed in wrong)


@given(st.text(), st.text(min_size=1))
def test_no_text_makes_one_raise(printed: str, expected: str) -> None:
    assert all(checker("", expected, printed) in (True, False) for checker in CHECKERS.values())


def test_a_function_of_ones_own_is_found_by_its_path() -> None:
    assert plugins.resolve("checker", "oapl_core.checkers:any_line") is CHECKERS["any_line"]
    with pytest.raises(ConfigError, match="there is no checker"):
        plugins.resolve("checker", "oapl_core.checkers:")
