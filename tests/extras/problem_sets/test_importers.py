"""Each importer on rows of the true shape, with every trap that the sets are known for."""

import base64
import gzip
import io
import json
import pickle
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from oapl_core.errors import DataError
from oapl_core.plugins import BUILT_IN
from oapl_core.problems.compressed_tests import RefusedPickle, pickled_text, private_tests
from oapl_extras.problem_sets.curation import Tally
from oapl_extras.problem_sets.import_set import Choice, chosen, converted, import_set, window
from oapl_extras.problem_sets.livecodebench import FAULTY
from oapl_extras.problem_sets.program_tests import function_name
from oapl_extras.problem_sets.sources import Source, source, sources
from tests.extras.problem_sets import foreign_rows as rows
from tests.extras.problem_sets.foreign_rows import Row, write_rows
from tests.reference_sets import SAMPLE, humaneval, math500, shared_file


def imported(name: str, tmp_path: Path, *given: Row) -> tuple[list[dict[str, Any]], Tally]:
    """The problems of rows of the set ``name``."""
    tally, found = Tally(), source(name)
    path = write_rows(tmp_path / "rows.jsonl", *given)
    return [each.problem for each in converted(found, [path], found.split, tally)], tally


def only(name: str, tmp_path: Path, row: Row) -> dict[str, Any]:
    problems, tally = imported(name, tmp_path, row)
    assert not tally.dropped
    (problem,) = problems
    return problem


def dropped(name: str, tmp_path: Path, *given: Row) -> dict[str, int]:
    problems, tally = imported(name, tmp_path, *given)
    assert not problems
    return dict(tally.dropped)


def refused(name: str, tmp_path: Path, row: Row) -> str:
    with pytest.raises(DataError) as caught:
        imported(name, tmp_path, row)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_every_set_names_a_reader_and_every_reader_has_a_set() -> None:
    assert {found.format for found in sources().values()} == BUILT_IN["importer"].keys()


# DeepCoder ------------------------------------------------------------------------------------------------------------


def test_printed_tests_keep_their_texts(tmp_path: Path) -> None:
    expected = [{"input": a, "output": b} for a, b in rows.STDIN_TESTS]
    for name, row in [
        ("deepcoder-primeintellect", rows.prime()),
        ("deepcoder-taco", rows.taco()),
        ("deepcoder-lcbv5", rows.lcbv5(False, None)),
        ("deepcoder-codeforces", rows.codeforces()),
    ]:
        problem = only(name, tmp_path, row)
        assert (problem["kind"], problem["entry_point"], problem["starter_code"]) == ("stdin", None, None)
        assert problem["tests"] == expected
        assert problem["problem_id"] == f"{name}/00000"


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("deepcoder-primeintellect", rows.prime_call()),
        ("deepcoder-taco", rows.taco_call()),
        ("deepcoder-lcbv5", rows.lcbv5(True, {"func_name": "double"})),
        ("deepcoder-lcbv5", rows.lcbv5(True, '{"func_name": "double"}')),
        ("deepcoder-lcbv5", rows.lcbv5(True, None)),
        ("deepcoder-lcbv5", rows.lcbv5(True, {"func_name": None})),
        ("livecodebench", rows.livecodebench("2727", "2024-08-01", functional=True)),
        ("livecodebench", rows.livecodebench("2727", "2024-08-01", functional=True, metadata="{}")),
        ("taco", rows.own_taco()),
    ],
)
def test_call_based_tests_keep_the_function_name_and_are_lists_of_arguments(
    name: str, row: Row, tmp_path: Path
) -> None:
    problem = only(name, tmp_path, row)
    assert (problem["kind"], problem["entry_point"]) == ("function", "double")
    assert [(json.loads(t["input"]), json.loads(t["output"])) for t in problem["tests"]] == rows.CALLS


def test_metadata_of_a_test_names_the_function_too(tmp_path: Path) -> None:
    tests = [test | {"metadata": {"func_name": "double"}} for test in rows.lcb_tests(True)]
    row = rows.lcbv5(True, None, starter_code="", tests=json.dumps(tests))
    assert only("deepcoder-lcbv5", tmp_path, row)["entry_point"] == "double"


def readings(row: Row, tmp_path: Path) -> list[list[Any]]:
    """The outputs of every reading of a row of DeepCoder's primeintellect, the likeliest first."""
    found = source("deepcoder-primeintellect")
    (each,) = converted(found, [write_rows(tmp_path / "a.jsonl", row)], "train", Tally())
    return [[json.loads(t["output"]) for t in tests] for tests in (each.problem["tests"], *each.readings)]


def test_outputs_in_lists_of_one_are_unwrapped_first_and_kept_as_another_reading(tmp_path: Path) -> None:
    values = [b for _, b in rows.CALLS]
    assert readings(rows.prime_call(), tmp_path) == [values, [[b] for b in values]]


def test_outputs_that_are_not_all_lists_of_one_have_one_reading(tmp_path: Path) -> None:
    values = [[0], [1], [2], [3], [4], 5]
    assert readings(rows.prime_call(outputs=values), tmp_path) == [values]


def test_outputs_that_are_texts_may_be_texts_or_what_they_spell(tmp_path: Path) -> None:
    assert readings(rows.prime_call(outputs=list("123456")), tmp_path) == [list("123456"), [1, 2, 3, 4, 5, 6]]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (rows.taco(tests='{"inputs": ["1"], "outputs": []}'), "inputs and outputs differ in number"),
        (rows.taco(tests='{"inputs": [], "outputs": []}'), "no tests"),
        (rows.taco(tests=""), "no tests"),
        (rows.taco(tests="[]"), "no tests"),
        (rows.taco(tests="{not json"), "tests are not JSON"),
        (rows.taco(problem=" "), "no problem"),
        (rows.taco(tests='{"inputs": [3], "outputs": [3], "fn_name": "f"}'), "arguments are not a list"),
        (
            rows.taco(tests=json.dumps([{"type": "function_call", "input": [1], "output": 1}])),
            "call-based tests without a function name",
        ),
        (
            rows.taco(
                tests=json.dumps([{"type": "function_call", "input": [], "output": 1, "fn_name": n} for n in "fg"])
            ),
            "tests with different function names",
        ),
        (
            rows.taco(tests=json.dumps([{"type": t, "input": "1", "output": "1"} for t in ("stdin", "functional")])),
            "tests with different types",
        ),
        (
            rows.taco(tests=json.dumps([{"type": "interactive", "input": "1", "output": "1"}])),
            "tests of the unknown type interactive",
        ),
        (
            rows.taco(tests=f'{{"inputs": [[{"9" * 5000}]], "outputs": [1], "fn_name": "f"}}'),
            "tests hold a number that is too long",
        ),
    ],
)
def test_what_cannot_be_used_is_dropped_under_its_reason(row: Row, reason: str, tmp_path: Path) -> None:
    assert dropped("deepcoder-taco", tmp_path, row) == {reason: 1}


def test_a_list_of_lines_is_one_text(tmp_path: Path) -> None:
    problem = only("deepcoder-taco", tmp_path, rows.taco(tests='{"inputs": [["1", "2"]], "outputs": [[3]]}'))
    assert problem["tests"] == [{"input": "1\n2", "output": "3"}]


def test_a_row_of_another_set_is_refused_with_its_place(tmp_path: Path) -> None:
    message = refused("deepcoder-taco", tmp_path, {"question": "?", "answer": "1"})
    assert "rows.jsonl: line 1: there is no column `problem`; is this a file of deepcoder-taco?" in message
    assert "not an object with `input`" in refused("deepcoder-taco", tmp_path, rows.taco(tests="[1]"))


def test_parquet_structs_and_nulls_are_read_like_json(tmp_path: Path) -> None:
    found = source("deepcoder-lcbv5")
    given = [rows.lcbv5(True, {"func_name": "double"}), rows.lcbv5(False, None), rows.lcbv5(False, {"func_name": None})]
    path = write_rows(tmp_path / "a.parquet", *given)
    problems = [each.problem for each in converted(found, [path], "train", Tally())]
    assert [problem["kind"] for problem in problems] == ["function", "stdin", "stdin"]


@pytest.mark.parametrize(
    ("starter_code", "name"),
    [
        (rows.DOUBLE_STARTER, "double"),
        ("def f(a):", "f"),
        ("def f(a):\n    pass\n", "f"),
        ("class Solution:\n    def __init__(self):\n        pass\n    def f(self):\n        pass\n", "f"),
        ("class Solution:\n    def f(self):\n        pass\n    def g(self):\n        pass\n", None),
        ("int f(int a) {", None),
        (None, None),
    ],
)
def test_the_function_of_starter_code_is_found_where_it_is_clear(starter_code: str | None, name: str | None) -> None:
    assert function_name(starter_code) == name


# LiveCodeBench --------------------------------------------------------------------------------------------------------


def test_livecodebench_tests_are_public_then_private_and_metadata_becomes_columns(tmp_path: Path) -> None:
    problem = only("livecodebench", tmp_path, rows.livecodebench("abc999_a", "2024-09-30"))
    assert problem["tests"] == [{"input": a, "output": b} for a, b in rows.STDIN_TESTS]
    known = {key: problem[key] for key in ("problem_id", "platform", "difficulty", "released", "flaw")}
    assert known == {
        "problem_id": "livecodebench/abc999_a",
        "platform": "atcoder",
        "difficulty": "hard",
        "released": "2024-09-30",
        "flaw": None,
    }


def test_private_tests_may_be_plain_json(tmp_path: Path) -> None:
    tests = rows.lcb_tests(False)
    plain = rows.livecodebench("a", "2024-09-30", private_test_cases=json.dumps(tests[2:]))
    assert only("livecodebench", tmp_path, plain)["tests"] == [{"input": a, "output": b} for a, b in rows.STDIN_TESTS]


def test_long_integers_of_functional_tests_keep_their_digits(tmp_path: Path) -> None:
    digits = "9" * 5000
    tests = [{"input": f"{digits}\n[1]", "output": digits, "testtype": "functional"}]
    row = rows.livecodebench("a", "2024-09-30", True, public_test_cases="[]", private_test_cases=json.dumps(tests))
    assert only("livecodebench", tmp_path, row)["tests"] == [{"input": f"[{digits}, [1]]", "output": digits}]


class Payload:
    """Unpickling it would run a program."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.mark,)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_malicious_pickle_is_refused_in_one_line_and_never_runs(protocol: int, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    for content in (Payload(mark), ["a text", Payload(mark)]):
        data = pickle.dumps(content, protocol)
        row = rows.livecodebench("a", "2024-09-30", private_test_cases=base64.b64encode(zlib.compress(data)).decode())
        assert "are a pickle with" in refused("livecodebench", tmp_path, row)
    assert not mark.exists()
    pickle.loads(pickle.dumps(Payload(mark)))
    assert mark.exists(), "the payload would not have done anything"


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("text", ["", "short", "long ü\n" * 100, "\U0001f600"])
def test_a_pickled_text_is_read_as_unpickling_would(text: str, protocol: int) -> None:
    assert pickled_text(io.BytesIO(pickle.dumps(text, protocol))) == text


@pytest.mark.parametrize(
    "content", [b"bytes", 3, None, ["text"], {"a": "b"}, ("text", "text")], ids=lambda content: type(content).__name__
)
def test_anything_but_a_text_is_refused(content: Any) -> None:
    with pytest.raises(RefusedPickle):
        pickled_text(io.BytesIO(pickle.dumps(content)))


@pytest.mark.parametrize("data", [b"", b"\x80\x04", b"\x80\x04\x8c\x05ab", b"\xff\xff", b"no pickle"])
def test_a_broken_pickle_is_refused(data: bytes) -> None:
    with pytest.raises(RefusedPickle):
        pickled_text(io.BytesIO(data))


@pytest.mark.parametrize("torn", ["not base64!", base64.b64encode(b"not zlib").decode()])
def test_torn_private_tests_are_dropped_and_counted(torn: str, tmp_path: Path) -> None:
    row = rows.livecodebench("a", "2024-09-30", private_test_cases=torn)
    assert dropped("livecodebench", tmp_path, row) == {"private tests cannot be unpacked": 1}


def test_a_stream_that_breaks_off_is_refused(tmp_path: Path) -> None:
    whole = zlib.compress(pickle.dumps(json.dumps(rows.lcb_tests(False) * 100)))
    row = rows.livecodebench("a", "2024-09-30", private_test_cases=base64.b64encode(whole[:-20]).decode())
    assert "are a broken pickle" in refused("livecodebench", tmp_path, row)


def test_a_bomb_is_refused_before_it_has_unpacked() -> None:
    packed = rows.packed(json.dumps("0" * 2**24))
    assert len(private_tests(packed, most_bytes=2**25)) == 2**24
    with pytest.raises(RefusedPickle, match="it is a bomb"):
        private_tests(packed, most_bytes=2**20)


def in_window(problems: Sequence[Row], text: str | None, faulty: str, tmp_path: Path) -> tuple[list[str], Tally]:
    tally, found = Tally(), source("livecodebench")
    path = write_rows(tmp_path / "test5.jsonl", *problems)
    stream = chosen(converted(found, [path], "heldout", tally), Choice("heldout", window(text), faulty), tally)
    return [each.problem["problem_id"].split("/")[1] for each in stream], tally


def test_a_window_takes_its_first_day_and_leaves_its_end_out(tmp_path: Path) -> None:
    days = ("2024-07-31", "2024-08-01", "2025-01-31", "2025-02-01")
    given = [rows.livecodebench(day, day) for day in days]
    assert in_window(given, "2024-08-01:2025-02-01", "keep", tmp_path)[0] == ["2024-08-01", "2025-01-31"]
    assert in_window(given, ":2024-08-01", "keep", tmp_path)[0] == ["2024-07-31"]
    kept, tally = in_window(given, "2025-01-31:", "keep", tmp_path)
    assert (kept, dict(tally.dropped)) == (["2025-01-31", "2025-02-01"], {"outside of the window": 2})


def test_faulty_problems_are_known_by_id_or_title_and_can_be_left_out(tmp_path: Path) -> None:
    by_id = rows.livecodebench("arc189_a", "2024-08-02")
    by_title = rows.livecodebench("3100", "2024-08-02", question_title="Find the Peaks")
    given = [by_id, by_title, rows.livecodebench("fine", "2024-08-02")]
    kept, tally = in_window(given, None, "keep", tmp_path)
    assert (kept, dict(tally.noted)) == (["arc189_a", "3100", "fine"], {"faulty upstream, marked in `flaw`": 2})
    without, tally = in_window(given, None, "drop", tmp_path)
    assert (without, tally.dropped.total()) == (["fine"], 2)
    assert in_window(given, None, "only", tmp_path)[0] == ["arc189_a", "3100"]
    assert len(FAULTY) == 17


# Others ---------------------------------------------------------------------------------------------------------------


def test_taco_tests_as_text_and_solutions_as_json(tmp_path: Path) -> None:
    found = source("taco")
    (each,) = converted(found, [write_rows(tmp_path / "a.jsonl", rows.own_taco())], "train", Tally())
    assert each.solutions == (rows.DOUBLE,)
    assert (each.problem["platform"], each.problem["difficulty"]) == ("codewars", "EASY")
    assert dropped("taco", tmp_path, rows.own_taco(input_output="")) == {"no tests": 1}


def test_primeintellect_reads_python_literals_and_drops_other_languages(tmp_path: Path) -> None:
    problem = only("primeintellect", tmp_path, rows.own_primeintellect())
    assert (problem["problem_id"], problem["entry_point"]) == ("primeintellect/vcp_1", "smallest")
    assert problem["tests"][5] == {"input": "[[5, 9]]", "output": "5"}
    rust = rows.own_primeintellect(verification_info=json.dumps({"language": "rust", "test_cases": []}))
    assert dropped("primeintellect", tmp_path, rust) == {"another language: rust": 1}


@pytest.mark.parametrize(
    ("name", "row", "answer"),
    [
        ("deepscaler", {"problem": "1+1?", "answer": "2", "solution": "..."}, "2"),
        (
            "math500",
            {"problem": "1+1?", "answer": "\\frac{4}{2}", "unique_id": "test/a/1.json", "level": 5},
            "\\frac{4}{2}",
        ),
        ("gsm8k", {"question": "1+1?", "answer": "One and one.\n#### 2"}, "2"),
        ("gsm8k", {"question": "?", "answer": "#### 1,234,567"}, "1234567"),
        ("gsm8k", {"question": "?", "answer": "#### -1,000.50"}, "-1000.50"),
        ("svamp", {"ID": "chal-1", "Body": "B", "Question": "Q?", "Equation": "( 7.0 - 5.0 )", "Answer": 2.0}, "2"),
        ("aime24", {"id": 60, "problem": "?", "answer": "025", "url": "u", "year": "2024"}, "25"),
        ("aime25", {"problem_idx": 1, "problem": "?", "answer": 70, "problem_type": ["NT"]}, "70"),
        ("aime25", {"problem_idx": 1, "problem": "?", "answer": "70"}, "70"),
        ("hmmt-feb25", {"problem_idx": 1, "problem": "?", "answer": "103"}, "103"),
        ("hmmt-nov25", {"problem_idx": 1, "problem": "?", "answer": 3}, "3"),
        ("brumo25", {"problem_idx": 1, "problem": "?", "answer": "\\sqrt{2}"}, "\\sqrt{2}"),
        ("brumo25", {"problem_idx": 1, "problem": "?", "answer": 3.0}, "3"),
    ],
)
def test_maths_answers_are_texts_without_separators(name: str, row: Row, answer: str, tmp_path: Path) -> None:
    problem = only(name, tmp_path, row)
    assert (problem["kind"], problem["answer"], problem["tests"]) == ("math", answer, [])


def test_a_sets_own_solutions_become_demonstrations(tmp_path: Path) -> None:
    gsm8k: Row = {"question": "1+1?", "answer": "She has 1+1 = <<1+1=2>>2.\n#### 2"}
    svamp: Row = {"ID": "chal-2", "Body": "A hat costs 6 dollars", "Question": "What do 2 and a 3 dollar tie cost?"}
    svamp |= {"Equation": "( ( 6.0 * 2.0 ) + 3.0 )", "Answer": 15.0}
    faulty = svamp | {"ID": "chal-680"}
    for name, published_rows, solutions in [
        ("gsm8k", [gsm8k], ["She has 1+1 = 2.\n#### 2"]),
        ("svamp", [svamp, faulty], ["( 6 * 2 ) + 3 = 15\n#### 15"]),
        ("deepscaler", [{"problem": "?", "answer": "1", "solution": "It is 1."}], ["It is 1."]),
    ]:
        published, target, worked = tmp_path / f"{name}.jsonl", tmp_path / f"to-{name}.jsonl", tmp_path / "worked.jsonl"
        published.write_text("".join(json.dumps(row) + "\n" for row in published_rows))
        import_set(source(name), [published], target, Choice("train", distinct=False), worked=worked)
        written = [json.loads(line) for line in worked.read_text().splitlines()]
        assert [line["solution"] for line in written] == solutions
        problems = [json.loads(line) for line in target.read_text().splitlines()]
        assert written[0]["problem_id"] == problems[0]["problem_id"]
        if name == "svamp":
            assert problems[0]["statement"] == "A hat costs 6 dollars. What do 2 and a 3 dollar tie cost?"
            assert [bool(problem.get("flaw")) for problem in problems] == [False, True]


@pytest.mark.parametrize(
    ("name", "row", "reason"),
    [
        ("deepscaler", {"problem": "?", "answer": "", "solution": ""}, "no answer"),
        ("deepscaler", {"problem": "?", "answer": None, "solution": ""}, "no answer"),
        ("gsm8k", {"question": "?", "answer": "two"}, "no answer after ####"),
        ("aime24", {"id": 1, "problem": "?", "answer": "x"}, "the answer is not an integer"),
    ],
)
def test_maths_rows_without_a_usable_answer_are_dropped(name: str, row: Row, reason: str, tmp_path: Path) -> None:
    assert dropped(name, tmp_path, row) == {reason: 1}


@pytest.mark.parametrize("name", ["deepscaler.json", "deepscaler.json.gz"])
def test_a_json_array_is_a_set_too(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    text = json.dumps([{"problem": f"{i}?", "answer": str(i)} for i in range(3)], indent=1).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    found = [each.problem["answer"] for each in converted(source("deepscaler"), [path], "train", Tally())]
    assert found == ["0", "1", "2"]


def test_mbpp_names_the_function_that_its_tests_call(tmp_path: Path) -> None:
    row = {
        "task_id": 7,
        "text": "Write a function to find the smallest.",
        "code": "import math\ndef helper(a):\n    return a\ndef smallest(v):\n    return helper(min(v))",
        "test_list": ["assert smallest([1, 2]) == 1", "assert math.isclose(smallest([3.0]), 3)"],
        "test_setup_code": "import math",
    }
    problem = only("mbpp", tmp_path, row)
    assert (problem["kind"], problem["entry_point"], problem["problem_id"]) == ("assert", "smallest", "MBPP/7")
    assert problem["tests"][0]["input"] == "import math\nassert smallest([1, 2]) == 1\n"
    assert "assert smallest([1, 2]) == 1" in problem["statement"]
    assert dropped("mbpp", tmp_path, row | {"code": "x = 1"}) == {"tests do not name one function": 1}
    assert dropped("mbpp", tmp_path, row | {"test_list": []}) == {"no tests": 1}


def test_humaneval_rows_are_complete_problems(tmp_path: Path) -> None:
    found = humaneval(SAMPLE)
    problems, tally = imported("humaneval", tmp_path, *found)
    assert (len(problems), tally.dropped.total()) == (6, 0)
    assert [p["entry_point"] for p in problems] == [row["entry_point"] for row in found]
    assert all(p["tests"][0]["input"].endswith(f"check({p['entry_point']})\n") for p in problems)


def read(found: Source, path: Path) -> tuple[list[dict[str, Any]], Tally]:
    tally = Tally()
    return [each.problem for each in converted(found, [path], "heldout", tally)], tally


def test_the_real_humaneval_and_math500_are_read_whole() -> None:
    problems, tally = read(source("humaneval"), shared_file("HumanEval.jsonl.gz"))
    assert (len(problems), tally.dropped.total()) == (164, 0)
    assert len({problem["problem_id"] for problem in problems}) == 164
    problems, tally = read(source("math500"), shared_file("math500.jsonl"))
    assert (len(problems), tally.dropped.total()) == (500, 0)
    assert [problem["answer"] for problem in problems] == [row["answer"] for row in math500()]


def test_plain_rows_are_checked_as_strictly_as_in_a_run(tmp_path: Path) -> None:
    row = {"problem_id": "m", "kind": "math", "statement": "1?", "answer": "1", "solutions": []}
    assert only("plain", tmp_path, row)["answer"] == "1"
    assert "unknown column `rating`" in refused("plain", tmp_path, row | {"rating": 3})


def test_an_id_that_comes_again_is_dropped(tmp_path: Path) -> None:
    row = rows.livecodebench("a", "2024-09-30")
    problems, tally = imported("livecodebench", tmp_path, row, row)
    assert (len(problems), dict(tally.dropped)) == (1, {"its problem_id was there before": 1})


def test_a_torn_file_is_one_line(tmp_path: Path) -> None:
    torn = tmp_path / "a.jsonl.gz"
    torn.write_bytes(gzip.compress(b'{"problem": "?", "answer": "1"}\n')[:-9])
    with pytest.raises(DataError, match="is not a whole gzip file"):
        read(source("deepscaler"), torn)
