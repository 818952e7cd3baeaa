"""DeepCoder-Preview-Dataset, TACO (or APPS) and PrimeIntellect's verifiable-coding-problems as problems. Pure.

All keep tests as text in an envelope of their own. DeepCoder has copies of the two others, and of LiveCodeBench, in
envelopes of its own, the column `tests`:

    primeintellect   a list of {type, input, output, fn_name}
    taco             an object of {inputs, outputs, optional fn_name}
    lcbv5            a list of {input, output, testtype}; the function's name is in the row's or the test's `metadata`
    codeforces       the same without test type
"""

from collections.abc import Mapping, Sequence
from typing import Any

from oapl_core.languages import named
from oapl_core.toolchain_of import PYTHON
from oapl_extras.problem_sets.imported import (
    Dropped,
    Imported,
    column,
    optional_text,
    parsed,
    solutions,
    structure,
    text,
)
from oapl_extras.problem_sets.program_tests import fill, form_of, function_name, objects, one_of, zipped


def deepcoder(row: dict[str, Any], name: str, number: int) -> Imported:
    """Import a row of any configuration; `imported.py` names the errors."""
    statement, starter_code = text(row, "problem"), optional_text(row, "starter_code")
    tests = structure(row, "tests")
    problem: dict[str, Any] = {
        "problem_id": f"{name}/{number:05d}",
        "statement": statement,
        "starter_code": starter_code,
    }
    imported = Imported(problem, solutions(row, "solutions"))
    if isinstance(tests, dict):
        _fill_zipped(imported, tests)
    else:
        tests = objects(tests)
        pairs = [(test["input"], test["output"]) for test in tests]
        fill(imported, form_of(tests), _entry_point(row, tests, starter_code), pairs)
    return imported


def _fill_zipped(imported: Imported, tests: Mapping[str, Any]) -> None:
    fill(imported, "call" if tests.get("fn_name") else "stdin", tests.get("fn_name"), zipped(tests))


def _entry_point(row: Mapping[str, Any], tests: Sequence[Mapping[str, Any]], starter_code: str | None) -> str | None:
    named = [test.get("fn_name") or _func_name(test.get("metadata")) for test in tests]
    name: str | None = one_of([_func_name(row.get("metadata")), *named], "function names")
    return name or function_name(starter_code)


def _func_name(metadata: Any) -> str | None:
    """Read the function's name from a struct or a JSON text, either of which may be missing."""
    known = parsed(metadata or "{}", "metadata")
    return known.get("func_name") if isinstance(known, dict) else None


def taco(row: dict[str, Any], name: str, number: int) -> Imported:
    """Import a row of TACO (or APPS): `input_output` is a text with {inputs, outputs, optional fn_name}."""
    tests = structure(row, "input_output")
    if not isinstance(tests, dict):
        raise Dropped("tests are not an object of inputs and outputs")
    problem: dict[str, Any] = {
        "problem_id": f"{name}/{number:05d}",
        "statement": text(row, "question"),
        "platform": optional_text(row, "source"),
        **{key: optional_text(row, key) for key in ("starter_code", "difficulty")},
    }
    imported = Imported(problem, solutions(row, "solutions"))
    _fill_zipped(imported, tests)
    return imported


def primeintellect(row: dict[str, Any], name: str, number: int) -> Imported:
    """Import a row of verifiable-coding-problems: `verification_info` is a text with {language, test_cases}."""
    info = structure(row, "verification_info")
    if not isinstance(info, dict):
        raise ValueError("`verification_info` is not an object")
    tag = info.get("language") or PYTHON
    language = PYTHON if tag == PYTHON else named(tag)
    if language is None:
        raise Dropped(f"another language: {tag}")
    tests = objects(column(info, "test_cases"))
    starter_code = optional_text(row, "starter_code")
    problem: dict[str, Any] = {
        "problem_id": f"{name}/{row.get('problem_id') or f'{number:05d}'}",
        "statement": text(row, "prompt"),
        "starter_code": starter_code,
        "platform": optional_text(row, "source"),
    }
    imported = Imported(problem, solutions(row, "gold_standard_solution"))
    kind = one_of((test.get("type") for test in tests), "types") or "stdin_stdout"
    entry_point = one_of((test.get("fn_name") for test in tests), "function names")
    pairs = [(test["input"], test["output"]) for test in tests]
    if language != PYTHON:
        if kind != "stdin_stdout":
            raise Dropped(f"calls a function in another language: {tag}")
        problem["language"] = language
    fill(imported, "stdin" if kind == "stdin_stdout" else "call", entry_point or function_name(starter_code), pairs)
    return imported
