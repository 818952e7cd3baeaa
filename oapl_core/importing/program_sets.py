"""TACO and PrimeIntellect's verifiable-coding-problems as their authors publish them, as problems. Pure.

Both keep tests as text in an envelope of their own and name the function of call-based tests. DeepCoder's copies of
them have another shape: deepcoder.py.
"""

from typing import Any

from oapl_core.importing.imported import Dropped, Imported, column, optional_text, solutions, structure, text
from oapl_core.importing.program_tests import fill, function_name, objects, one_of, zipped


def taco(row: dict[str, Any], name: str, number: int) -> Imported:
    """A row of TACO (or APPS): `input_output` is a text with {inputs, outputs, optional fn_name}."""
    tests = structure(row, "input_output")
    if not isinstance(tests, dict):
        raise Dropped("tests are not an object of inputs and outputs")
    problem: dict[str, Any] = {
        "problem_id": f"{name}/{number:05d}",
        "statement": text(row, "question"),
        "starter_code": optional_text(row, "starter_code"),
        "platform": optional_text(row, "source"),
        "difficulty": optional_text(row, "difficulty"),
    }
    imported = Imported(problem, solutions(row, "solutions"))
    fill(imported, "call" if tests.get("fn_name") else "stdin", tests.get("fn_name"), zipped(tests))
    return imported


def primeintellect(row: dict[str, Any], name: str, number: int) -> Imported:
    """A row of verifiable-coding-problems: `verification_info` is a text with {language, test_cases}."""
    info = structure(row, "verification_info")
    if not isinstance(info, dict):
        raise ValueError("`verification_info` is not an object")
    if (language := info.get("language") or "python") != "python":
        raise Dropped(f"another language: {language}")
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
    fill(imported, "stdin" if kind == "stdin_stdout" else "call", entry_point or function_name(starter_code), pairs)
    return imported
