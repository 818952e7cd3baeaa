"""What is worth keeping: reference solutions and gold answers through the real verifier, duplicates, contamination."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from oapl_core.errors import DataError
from oapl_core.problems.problem_set import read_problem_set
from oapl_core.settings.verifier import VerifierConfig
from oapl_extras.problem_sets.curation import Tally, Word, proven, uncontaminated, unlike, with_tests
from oapl_extras.problem_sets.curation_judge import VerifierJudge
from oapl_extras.problem_sets.import_set import Choice, converted, import_set
from oapl_extras.problem_sets.imported import Imported
from oapl_extras.problem_sets.sources import source
from tests.extras.problem_sets import foreign_rows as rows
from tests.extras.problem_sets.foreign_rows import Row, write_rows
from tests.extras.problem_sets.test_likeness import changed, text
from tests.reference_sets import SAMPLE, humaneval


@pytest.fixture(scope="module")
def judge() -> Iterator[VerifierJudge]:
    with VerifierJudge(VerifierConfig(workers=2, cpu_s=3, wall_s=9)) as started:
        yield started


def read(name: str, tmp_path: Path, *given: Row) -> list[Imported]:
    return list(converted(source(name), [write_rows(tmp_path / "rows.jsonl", *given)], "train", Tally()))


SOLVABLE = [
    ("deepcoder-primeintellect", rows.prime()),
    ("deepcoder-primeintellect", rows.prime_call()),
    ("deepcoder-primeintellect", rows.prime_call(outputs=[b for _, b in rows.CALLS])),
    ("deepcoder-primeintellect", rows.prime_call(outputs=[json.dumps(b) for _, b in rows.CALLS])),
    ("deepcoder-taco", rows.taco()),
    ("deepcoder-taco", rows.taco_call()),
    ("deepcoder-lcbv5", rows.lcbv5(True, None, solutions=[rows.DOUBLE_METHOD])),
    ("deepcoder-lcbv5", rows.lcbv5(True, None, solutions=[rows.DOUBLE])),
    ("deepcoder-lcbv5", rows.lcbv5(False, None, solutions=[rows.SUM])),
    ("taco", rows.own_taco()),
    ("primeintellect", rows.own_primeintellect()),
]


@pytest.mark.parametrize(("name", "row"), SOLVABLE)
def test_a_problem_of_every_form_is_solved_by_its_reference_solution_in_the_sandbox(
    name: str, row: Row, judge: VerifierJudge, tmp_path: Path
) -> None:
    tally = Tally()
    (imported,) = proven(read(name, tmp_path, row), tally, judge)
    assert not tally.dropped
    assert not tally.noted
    problem = imported.problem
    assert len(problem["tests"]) == 6
    wrong = "def double(*a): return 1\ndef smallest(*a): return 1\nif __name__ == '__main__': print(1)"
    assert judge.programs([problem], [wrong]) == ["fails"]


def test_one_element_lists_that_are_meant_are_found_by_the_reference_solution(
    judge: VerifierJudge, tmp_path: Path
) -> None:
    row = rows.prime_call(outputs=[[i] for i in range(6)], solutions=["def double(v, t):\n    return [v[0]]"])
    (imported,) = proven(read("deepcoder-primeintellect", tmp_path, row), Tally(), judge)
    assert [json.loads(test["output"]) for test in imported.problem["tests"]] == [[i] for i in range(6)]
    row = rows.prime_call(outputs=[[i] for i in range(6)], solutions=["def double(v, t):\n    return v[0]"])
    (imported,) = proven(read("deepcoder-primeintellect", tmp_path, row), Tally(), judge)
    assert [json.loads(test["output"]) for test in imported.problem["tests"]] == list(range(6))


def test_the_second_solution_counts_if_the_first_is_wrong_and_wrong_ones_alone_drop(
    judge: VerifierJudge, tmp_path: Path
) -> None:
    given = [
        rows.taco(solutions=["print(0)", rows.SUM]),
        rows.taco(solutions=["print(0)", "def"]),
        rows.taco(solutions=[]),
        rows.codeforces(),
    ]
    tally = Tally()
    kept = list(proven(read("deepcoder-taco", tmp_path, *given), tally, judge))
    assert [imported.problem["problem_id"][-1] for imported in kept] == ["0", "3"]
    assert tally.dropped == {"no reference solution passes every test": 1, "no reference solution": 1}
    assert tally.noted == {"no reference solution in the set: not proven": 1}


def test_the_sample_of_humaneval_proves_itself(judge: VerifierJudge, tmp_path: Path) -> None:
    tally = Tally()
    assert len(list(proven(read("humaneval", tmp_path, *humaneval(SAMPLE)), tally, judge))) == 6
    assert not tally.dropped


def test_gold_answers_must_verify_against_themselves(judge: VerifierJudge, tmp_path: Path) -> None:
    answers = ["2", "\\frac{1}{2}", "\\text{see the solution", "x^2+1"]
    given = [{"problem": f"{i}?", "answer": answer} for i, answer in enumerate(answers)]
    tally = Tally()
    kept = [each.problem["answer"] for each in proven(read("deepscaler", tmp_path, *given), tally, judge)]
    assert kept == ["2", "\\frac{1}{2}", "x^2+1"]
    assert tally.dropped == {"the answer does not verify against itself": 1}


class Broken:
    """A verifier that cannot judge."""

    def programs(self, problems: Any, sources: Any) -> list[Word]:
        return ["broken"] * len(problems)

    def answers(self, answers: Any) -> list[bool]:
        return [True] * len(answers)

    def unearned(self, problems: Any) -> list[str | None]:
        return [None] * len(problems)


def test_what_could_not_be_judged_has_a_reason_of_its_own(tmp_path: Path) -> None:
    tally = Tally()
    assert list(proven(read("deepcoder-taco", tmp_path, rows.taco()), tally, Broken())) == []
    assert tally.dropped == {"its reference solution could not be judged": 1}


def maths(name: str, statement: str, answer: str = "1") -> Imported:
    return Imported({"problem_id": name, "kind": "math", "statement": statement, "answer": answer, "tests": []})


def names(problems: Iterator[Imported]) -> list[str]:
    return [imported.problem["problem_id"] for imported in problems]


def test_duplicates_are_dropped_within_a_set_and_across_sets() -> None:
    given = [
        maths("first", text(1)),
        maths("exact", text(1).upper()),
        maths("near", changed(text(1), 0.01)),
        maths("other", text(2)),
        maths("elsewhere", text(3)),
    ]
    tally = Tally()
    assert names(unlike(given, tally, [("e", text(3))], 0.8)) == ["first", "other"]
    assert tally.dropped == {"the same statement was there before": 2, "nearly the same statement was there before": 1}


def test_nearly_equal_maths_with_different_answers_are_different_problems() -> None:
    given = [maths("a", text(1), "1"), maths("b", changed(text(1), 0.01), "2"), maths("c", f"{text(1)} x", "1")]
    assert names(unlike(given, Tally(), [], 0.8)) == ["a", "b"]


def test_training_problems_of_an_evaluation_set_are_dropped_whatever_their_answer() -> None:
    given = [
        maths("exact", text(1), "5"),
        maths("near", changed(text(1), 0.01), "6"),
        maths("inside", f"{text(7)} {text(1)} {text(8)}"),
        maths("clean", text(9)),
    ]
    tally = Tally()
    assert names(uncontaminated(given, tally, [("e", text(1))], 0.8)) == ["clean"]
    assert tally.dropped == {
        "in an evaluation set": 1,
        "nearly in an evaluation set": 1,
        "contains 30% of an evaluation problem's 13-word pieces": 1,
    }


def test_few_tests_drop_programs_and_the_longest_inputs_are_kept_in_every_reading(tmp_path: Path) -> None:
    given = read("deepcoder-primeintellect", tmp_path, rows.prime_call(), rows.prime())
    given[1].problem["tests"] = given[1].problem["tests"][:4]
    longest = [[[10**9, 1], 2], [[10**8, 1], 2]]
    for place, arguments in zip((4, 1), longest, strict=True):
        for reading in (given[0].problem["tests"], *given[0].readings):
            reading[place] = {**reading[place], "input": json.dumps(arguments)}
    tally = Tally()
    (kept,) = with_tests([*given, maths("m", "?")][:2], tally, 5, 2)
    assert [json.loads(test["input"]) for test in kept.problem["tests"]] == [longest[1], longest[0]]
    assert [[json.loads(t["output"]) for t in reading] for reading in kept.readings] == [[[[2, 2]], [[8, 2]]]]
    assert tally.dropped == {"fewer than 5 tests": 1}
    assert tally.noted == {"only the 2 tests with the longest inputs kept": 1}


def test_an_import_writes_problems_that_a_run_reads_and_says_where_they_came_from(
    judge: VerifierJudge, tmp_path: Path
) -> None:
    path = write_rows(tmp_path / "rows.jsonl", rows.taco(), rows.taco_call(), rows.taco(solutions=[]), rows.taco())
    for target in ("out.jsonl", "out.jsonl.gz", "out.parquet"):
        tally = import_set(source("deepcoder-taco"), [path], tmp_path / target, Choice("train"), verifier=judge)
        found = list(read_problem_set(tmp_path / target, "train"))
        assert [problem["problem_id"] for problem in found] == ["deepcoder-taco/00000", "deepcoder-taco/00001"]
        origin = json.loads((tmp_path / f"{target}.origin.json").read_text())
        assert (origin["read"], origin["kept"]) == (tally.read, tally.kept) == (4, 2)
        assert origin["dropped"] == {"no reference solution": 1, "the same statement was there before": 1}
        assert origin["files"].keys() == {str(path)}
    assert not list(tmp_path.glob(".tmp-*"))


def test_nothing_left_is_an_error_that_says_why(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rows.jsonl", rows.taco(tests=""))
    with pytest.raises(DataError, match=r"nothing is left of 1 rows \(1 no tests\)"):
        import_set(source("deepcoder-taco"), [path], tmp_path / "out.jsonl", Choice("train"))
    assert not (tmp_path / "out.jsonl").exists()
