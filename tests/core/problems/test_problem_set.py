"""A problem set is read whole or refused with one line that names file, row and remedy."""

import gzip
import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from oapl_core.checkers import checker
from oapl_core.errors import DataError
from oapl_core.problems.problem_set import read_problem_set

MATH: dict[str, Any] = {"problem_id": "m", "split": "train", "kind": "math", "statement": "1 + 1?", "answer": "2"}
STDIN: dict[str, Any] = {
    "problem_id": "s",
    "split": "train",
    "kind": "stdin",
    "statement": "Echo.",
    "tests": [{"input": "1\n", "output": "1\n"}],
}
FUNCTION: dict[str, Any] = {
    "problem_id": "f",
    "split": "train",
    "kind": "function",
    "statement": "Return n.",
    "entry_point": "same",
    "starter_code": "def same(n):",
    "tests": [{"input": "[1]", "output": "1"}],
}
ASSERT: dict[str, Any] = {
    "problem_id": "a",
    "kind": "assert",
    "statement": "Return n.",
    "entry_point": "same",
    "tests": [{"input": "assert same(1) == 1", "output": ""}],
}
COMPLETE = {
    "problem_id",
    "split",
    "kind",
    "statement",
    "starter_code",
    "entry_point",
    "tests",
    "answer",
    "checker",
    "structure",
    "source",
    "platform",
    "difficulty",
    "released",
    "flaw",
}


def write(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def complaint(path: Path, split: str = "train") -> str:
    with pytest.raises(DataError) as caught:
        list(read_problem_set(path, split))
    message = str(caught.value)
    assert "\n" not in message
    assert str(path) in message
    return message


def test_every_row_comes_back_complete_and_in_order(tmp_path: Path) -> None:
    found = list(read_problem_set(write(tmp_path / "a.jsonl", MATH, STDIN, FUNCTION), "train"))
    assert [row["problem_id"] for row in found] == ["m", "s", "f"]
    assert all(row.keys() == COMPLETE for row in found)
    assert found[0]["tests"] == []


def test_jsonl_gzip_and_parquet_give_the_same_problems(tmp_path: Path) -> None:
    plain = write(tmp_path / "a.jsonl", MATH, STDIN, FUNCTION)
    zipped = tmp_path / "a.jsonl.gz"
    zipped.write_bytes(gzip.compress(plain.read_bytes()))
    expected = list(read_problem_set(plain, "train"))
    pq.write_table(pa.Table.from_pylist(expected), tmp_path / "a.parquet")
    assert list(read_problem_set(zipped, "train")) == expected
    assert list(read_problem_set(tmp_path / "a.parquet", "train")) == expected


def test_the_split_may_be_left_out(tmp_path: Path) -> None:
    row = {key: value for key, value in MATH.items() if key != "split"}
    assert next(iter(read_problem_set(write(tmp_path / "a.jsonl", row), "heldout")))["split"] == "heldout"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"problem_id": ""}, "`problem_id`"),
        ({"statement": None}, "`statement`"),
        ({"kind": "essay"}, "stdin, function, assert, math"),
        ({"split": "heldout"}, "`split` is 'heldout' in a file given as train"),
        ({"tests": []}, "at least one"),
        ({"tests": [{"input": "1"}]}, "test 0"),
        ({"tests": [{"input": "[1]", "output": 1}]}, "must be texts"),
        (
            {"tests": [{"input": "[1]", "output": "1"}, {"input": "1", "output": "1"}]},
            "test 1: `input` must be a JSON array",
        ),
        ({"tests": [{"input": "[1]", "output": "one"}]}, "`output` must be a JSON value"),
        ({"entry_point": None}, "`entry_point`"),
        ({"entry_point": "not a name"}, "`entry_point`"),
        ({"answer": 3}, "`answer` must be a text"),
        ({"kind": "math", "tests": [], "answer": " "}, "needs an `answer`"),
        ({"kind": "math", "answer": "2"}, "has no `tests`"),
        ({"messages": 3}, "a prompt must be a text or a list"),
        ({"difficulty": 3}, "`difficulty` must be a text"),
    ],
)
def test_a_broken_row_is_one_line_with_its_place(tmp_path: Path, change: dict[str, Any], expected: str) -> None:
    message = complaint(write(tmp_path / "a.jsonl", MATH, {**FUNCTION, **change}))
    assert "line 2" in message
    assert expected in message


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"entry_point": None}, "kind assert needs `entry_point`"),
        ({"tests": [{"input": "assert same(1) ==", "output": ""}]}, "test 0: `input` must be Python code"),
        ({"tests": [{"input": "assert same(1)", "output": "1"}]}, "test 0: `output` must be empty"),
        ({"tests": []}, "at least one"),
        ({"checker": "any_line"}, "has no use for a `checker`"),
    ],
)
def test_a_broken_assert_problem_is_named(tmp_path: Path, change: dict[str, Any], expected: str) -> None:
    assert [row["kind"] for row in read_problem_set(write(tmp_path / "a.jsonl", ASSERT), "heldout")] == ["assert"]
    assert expected in complaint(write(tmp_path / "a.jsonl", {**ASSERT, **change}), "heldout")


@pytest.mark.parametrize(
    ("checker", "expected"),
    [
        ("any_lines", "there is no checker 'any_lines'; known are unordered_lines, "),
        ("no_such_module:judge", "there is no such module"),
        ("builtins:chr", "is not marked, and a row may be somebody else's"),
        (f"{__name__}:no_such_function", "cannot be imported"),
        (f"{__name__}:two_texts", "does not take (test_input, expected, printed)"),
        (f"{__name__}:unmarked", "is not marked, and a row may be somebody else's"),
        ("os:execl", "does not import oapl_core.checkers, so it was not imported"),
        ("antigravity:::", "there is no checker"),
        (7, "`checker` must be a text or null"),
    ],
)
def test_a_checker_that_cannot_be_used_is_named(tmp_path: Path, checker: Any, expected: str) -> None:
    assert expected in complaint(write(tmp_path / "a.jsonl", {**STDIN, "checker": checker}))


@checker  # type: ignore[arg-type]
def two_texts(expected: str, printed: str) -> bool:
    raise AssertionError("a checker that is only named is not called")


def unmarked(test_input: str, expected: str, printed: str) -> bool:
    raise AssertionError("code that a row may not name is not called")


@checker
def marked(test_input: str, expected: str, printed: str) -> bool:
    return printed == expected


def test_a_checker_by_name_or_path_is_kept(tmp_path: Path) -> None:
    named = ["any_line", "oapl_core.checkers:any_line", f"{__name__}:marked"]
    rows = [{**STDIN, "problem_id": name, "checker": name} for name in named]
    found = read_problem_set(write(tmp_path / "a.jsonl", *rows), "train")
    assert [row["checker"] for row in found] == named


def test_a_module_that_has_no_checker_is_not_even_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = tmp_path / "somebody_s.py"
    code.write_text("raise AssertionError('it ran')\ndef f(a, b, c): return True\n")
    monkeypatch.chdir(tmp_path)
    path = write(tmp_path / "a.jsonl", {**STDIN, "checker": "somebody_s:f"})
    assert "somebody_s:f: that module does not import oapl_core.checkers, so it was not imported" in complaint(path)
    assert "somebody_s" not in sys.modules
    # once its owner has marked it, it is taken, without a new process; written either way
    code.write_text("from oapl_core import checkers\n@checkers.checker\ndef f(a, b, c): return True\n")
    assert [row["checker"] for row in read_problem_set(path, "train")] == ["somebody_s:f"]


def test_a_line_that_is_not_json_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", MATH)
    path.write_text(path.read_text() + '{"problem_id": \n')
    assert "line 2: is not JSON" in complaint(path)


def test_a_line_that_is_no_object_is_named(tmp_path: Path) -> None:
    assert "line 1: is not a JSON object" in complaint(write(tmp_path / "a.jsonl", [1]))


def test_an_id_used_twice_is_named_with_both_places(tmp_path: Path) -> None:
    message = complaint(write(tmp_path / "a.jsonl", MATH, STDIN, MATH))
    assert "line 3" in message
    assert "at 1" in message


def test_files_that_cannot_be_problem_sets_are_refused(tmp_path: Path) -> None:
    assert "no such problem set" in complaint(tmp_path / "missing.jsonl")
    assert "is a folder" in complaint(tmp_path)
    assert "unknown kind of file" in complaint(write(tmp_path / "a.xlsx", MATH))
    assert "holds no problems" in complaint(write(tmp_path / "empty.jsonl"))


def test_torn_files_are_refused(tmp_path: Path) -> None:
    torn = tmp_path / "a.jsonl.gz"
    torn.write_bytes(gzip.compress(json.dumps(MATH).encode())[:-9])
    assert "is not a whole gzip file" in complaint(torn)
    table = tmp_path / "a.parquet"
    table.write_bytes(b"PAR1 and no more")
    assert "cannot be read as Parquet" in complaint(table)
