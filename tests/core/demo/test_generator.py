"""The demo's problem set is what data/demo/README.md says: deterministic, discriminating, held out by structure."""

import ast
import functools
import hashlib
import importlib
import json
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

DEMO = Path(__file__).resolve().parents[3] / "data" / "demo"
SPLITS = {"train": 600, "validation": 80, "heldout": 150}
FILES = [f"{split}.jsonl" for split in SPLITS] + ["solutions.jsonl"]


def module(name: str) -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(DEMO))
        return importlib.import_module(name)


@functools.cache
def rows(split: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DEMO / f"{split}.jsonl").read_text().splitlines()]


def everything() -> list[dict[str, Any]]:
    return [row for split in SPLITS for row in rows(split)]


def pairs(split: str) -> set[tuple[str, str]]:
    generate = module("generate")
    return set().union(*(generate.neighbours(row["structure"]) for row in rows(split)))


def test_committed_files_are_what_the_generator_writes(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "data.demo.generate", "--output", tmp_path], check=True, capture_output=True)
    digests = [[hashlib.sha256((folder / f).read_bytes()).hexdigest() for f in FILES] for folder in (DEMO, tmp_path)]
    assert digests[0] == digests[1]


def test_another_seed_gives_other_problems_and_sizes_follow_the_arguments(tmp_path: Path) -> None:
    options = ["--train", "9", "--validation", "3", "--heldout", "6", "--solutions", "2", "--seed", "5"]
    subprocess.run(
        [sys.executable, "-m", "data.demo.generate", *options, "--output", tmp_path], check=True, capture_output=True
    )
    made = [json.loads(line) for line in (tmp_path / "train.jsonl").read_text().splitlines()]
    assert len(made) == 9
    assert {row["statement"] for row in made} != {row["statement"] for row in rows("train")[:9]}
    solved = [json.loads(line) for line in (tmp_path / "solutions.jsonl").read_text().splitlines()]
    assert [row["problem_id"] for row in solved] == [row["problem_id"] for row in made]
    assert all(len(row["solutions"]) == 2 for row in solved)


@pytest.mark.parametrize("split", SPLITS)
def test_every_split_is_large_enough_and_has_every_kind(split: str) -> None:
    assert len(rows(split)) >= SPLITS[split]
    kinds = Counter(row["kind"] for row in rows(split))
    assert set(kinds) == {"stdin", "function", "math"}
    assert min(kinds.values()) >= len(rows(split)) // 4


def test_the_committed_files_are_small() -> None:
    assert sum((DEMO / name).stat().st_size for name in FILES) < 5_000_000


def test_no_statement_or_id_appears_twice_in_any_split() -> None:
    for key in ("problem_id", "statement"):
        assert max(Counter(row[key] for row in everything()).values()) == 1


def test_heldout_problems_have_pairs_of_operations_that_no_other_split_has() -> None:
    generate = module("generate")
    seen = pairs("train") | pairs("validation")
    for row in rows("heldout"):
        assert generate.neighbours(row["structure"]) - seen, row["structure"]


def test_heldout_structures_never_appear_in_training_or_validation() -> None:
    def structures(split: str) -> set[str]:
        return {row["structure"].partition(": ")[2] for row in rows(split)}

    assert not structures("heldout") & (structures("train") | structures("validation"))


def test_programs_have_six_different_tests_and_the_statement_shows_none() -> None:
    for row in everything():
        if row["kind"] == "math":
            assert row["tests"] == []
            continue
        assert len({test["input"] for test in row["tests"]}) >= 6
        assert not any(test["input"].strip() in row["statement"] for test in row["tests"])


def test_function_tests_are_json_arguments_and_results() -> None:
    for row in everything():
        if row["kind"] == "function":
            assert row["entry_point"] == "solve"
            for test in row["tests"]:
                assert isinstance(json.loads(test["input"]), list)
                json.loads(test["output"])


@functools.cache
def some_chains() -> list[tuple[str, Any, dict[str, Any]]]:
    """(kind, chain, row) of freshly drawn program problems, whose right and wrong programs can be made."""
    generate, rng = module("generate"), random.Random(3)
    made: list[tuple[str, Any, dict[str, Any]]] = []
    while len(made) < 60:
        kind = ("stdin", "function")[len(made) % 2]
        drawn = generate.draw_problem(rng, kind)
        if drawn is not None:
            made.append((kind, drawn[1], drawn[0]))
    return made


def passes(kind: str, program: str, row: dict[str, Any]) -> bool:
    """Whether a program passes every test, run in a process of its own as the verifier would."""
    runner = (
        "import io, json, sys\n"
        "kind, program, tests = json.load(sys.stdin)\n"
        "for test in tests:\n"
        "    scope, sys.stdin, sys.stdout = {}, io.StringIO(test['input']), io.StringIO()\n"
        "    try:\n"
        "        exec(program, scope)\n"
        "        called = kind == 'function' and json.dumps(scope['solve'](*json.loads(test['input'])))\n"
        "        got = called or sys.stdout.getvalue()\n"
        "    except (IndexError, ValueError, ZeroDivisionError):\n"
        "        got = None\n"
        "    if got is None or got.split() != test['output'].split():\n"
        "        sys.exit(1)\n"
    )
    job = json.dumps([kind, program, row["tests"]])
    return subprocess.run([sys.executable, "-I", "-c", runner], input=job, text=True).returncode == 0


def test_the_right_program_passes_its_tests_in_a_real_interpreter() -> None:
    programs = module("programs")
    for kind, chain, row in some_chains()[:10]:
        assert passes(kind, programs.code(kind, chain, [0] * len(chain)), row)


def test_every_single_wrong_habit_fails_a_test() -> None:
    programs = module("programs")
    for kind, chain, row in some_chains():
        for habits in programs.single_faults(chain):
            program = programs.code(kind, chain, habits)
            numbers = [t["input"].split() if kind == "stdin" else json.loads(t["input"])[0] for t in row["tests"]]
            got = [programs.run(kind, program, [int(n) for n in values]) for values in numbers]
            assert got != [test["output"].rstrip("\n") for test in row["tests"]], program


def test_every_single_wrong_habit_changes_a_maths_answer() -> None:
    compositions, rng = module("compositions"), random.Random(4)
    drawn = [functions for _ in range(100) if (functions := compositions.draw(rng, rng.choice((2, 3)))) is not None]
    assert len(drawn) > 50
    for functions in drawn:
        n = len(functions) + 1
        right = compositions.values(compositions.text(functions, [0] * n))
        for fault in range(n):
            habits = [int(at == fault) for at in range(n)]
            assert compositions.values(compositions.text(functions, habits)) != right


def test_the_expanded_answer_equals_the_substituted_one() -> None:
    sympy = pytest.importorskip("sympy")
    compositions, rng, x = module("compositions"), random.Random(5), sympy.Symbol("x")
    for _ in range(20):
        functions = compositions.draw(rng, 3)
        if functions is None:
            continue
        written = compositions.text(functions, [0, 0, 0, 0]).replace("^", "**")
        gold = compositions.expanded(functions).replace("^", "**").replace("\\frac", "")
        gold = gold.replace("}{", ")/(").replace("{", "(").replace("}", ")")
        for letter in ("x", "("):
            for digit in "0123456789)":
                gold = gold.replace(f"{digit}{letter}", f"{digit}*{letter}")
        assert sympy.expand(sympy.sympify(written, {"x": x}) - sympy.sympify(gold, {"x": x})) == 0


def test_made_up_solutions_are_of_training_problems_and_partly_wrong() -> None:
    solved = rows("solutions")
    train = {row["problem_id"]: row for row in rows("train")}
    assert [row["problem_id"] for row in solved] == list(train)
    share = right = 0
    programs = module("programs")
    for row in solved[:150]:
        problem = train[row["problem_id"]]
        assert row["statement"] == problem["statement"]
        if problem["kind"] != "stdin":
            continue
        for text in row["solutions"]:
            program = text.removeprefix("```python\n").removesuffix("\n```")
            share += 1
            right += all(
                programs.run("stdin", program, [int(n) for n in test["input"].split()]) == test["output"].rstrip("\n")
                for test in problem["tests"]
            )
    assert 0.15 < right / share < 0.45


def test_the_generator_imports_the_standard_library_alone() -> None:
    for path in DEMO.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert all(name.split(".")[0] in sys.stdlib_module_names | {"data"} for name in names), path
