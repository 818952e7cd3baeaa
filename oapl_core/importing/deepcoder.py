"""DeepCoder-Preview-Dataset: rows of its four configurations as problems. Pure.

`tests` is a text with JSON in it, in one of three forms: a list of {type, input, output, fn_name} (primeintellect), an
object of {inputs, outputs, optional fn_name} (taco), a list of {input, output, testtype} with the function's name in
the row's or the test's `metadata` (lcbv5), or without test type (codeforces).
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from oapl_core.importing.imported import Dropped, Imported, optional_text, parsed, solutions, structure, text
from oapl_core.importing.program_tests import fill, function_name, objects, one_of, zipped

_STDIN = frozenset({"stdin", "stdin_stdout"})
_CALLS = frozenset({"function_call"})
_LINES = frozenset({"functional"})


def deepcoder(row: dict[str, Any], name: str, number: int) -> Imported:
    """A row of any configuration; see `imported.py` for what is raised."""
    statement, starter_code = text(row, "problem"), optional_text(row, "starter_code")
    tests = structure(row, "tests")
    problem: dict[str, Any] = {
        "problem_id": f"{name}/{number:05d}",
        "statement": statement,
        "starter_code": starter_code,
    }
    imported = Imported(problem, solutions(row, "solutions"))
    if isinstance(tests, dict):
        pairs = zipped(tests)
        fill(imported, "call" if tests.get("fn_name") else "stdin", tests.get("fn_name"), pairs)
    else:
        tests = objects(tests)
        pairs = [(test["input"], test["output"]) for test in tests]
        fill(imported, _form(tests), _entry_point(row, tests, starter_code), pairs)
    return imported


def _form(tests: Sequence[Mapping[str, Any]]) -> Literal["stdin", "call", "lines"]:
    kind: str = one_of((test.get("type") or test.get("testtype") for test in tests), "types") or "stdin"
    if kind in _STDIN:
        return "stdin"
    if kind in _CALLS:
        return "call"
    if kind in _LINES:
        return "lines"
    raise Dropped(f"tests of the unknown type {kind}")


def _entry_point(row: Mapping[str, Any], tests: Sequence[Mapping[str, Any]], starter_code: str | None) -> str | None:
    named = [test.get("fn_name") or _func_name(test.get("metadata")) for test in tests]
    name: str | None = one_of([_func_name(row.get("metadata")), *named], "function names")
    return name or function_name(starter_code)


def _func_name(metadata: Any) -> str | None:
    """From a struct or a JSON text, either of which may be missing."""
    known = parsed(metadata or "{}", "metadata")
    return known.get("func_name") if isinstance(known, dict) else None
