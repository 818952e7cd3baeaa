"""HumanEval and MBPP as problems of kind `assert`: checks that call the program (docs/extras/problem_sets.md).
Pure."""

import ast
from typing import Any

from oapl_extras.problem_sets.imported import Dropped, Imported, Tests, column, text


def humaneval(row: dict[str, Any], name: str, number: int) -> Imported:
    """Import a row of HumanEval: `test` defines check(candidate)."""
    entry_point, prompt = text(row, "entry_point"), text(row, "prompt")
    checks = f"{text(row, 'test')}\ncheck({entry_point})\n"
    problem = _problem(text(row, "task_id"), prompt, entry_point, [{"input": checks, "output": ""}])
    # The canonical solution is the body alone: the prompt has the imports and the head.
    return Imported(problem | {"starter_code": prompt}, (prompt + text(row, "canonical_solution"),))


def mbpp(row: dict[str, Any], name: str, number: int) -> Imported:
    """Import a row of MBPP: the statement shows the tests, which alone name the function."""
    asserts = list(column(row, "test_list") or ())
    if not asserts:
        raise Dropped("no tests")
    code = text(row, "code")
    setup = "\n".join([*(row.get("test_imports") or ()), row.get("test_setup_code") or ""]).strip()
    shown = "\n".join(asserts)
    statement = f"{text(row, 'text', 'prompt')}\n\nYour code should pass these tests:\n\n{shown}"
    tests = [{"input": f"{setup}\n{check}\n".lstrip(), "output": ""} for check in asserts]
    problem = _problem(f"MBPP/{text(row, 'task_id')}", statement, _called(code, asserts), tests)
    return Imported(problem, (code,))


def _problem(problem_id: str, statement: str, entry_point: str, tests: Tests) -> dict[str, Any]:
    return {
        "problem_id": problem_id,
        "kind": "assert",
        "statement": statement,
        "entry_point": entry_point,
        "tests": tests,
    }


def _called(code: str, asserts: list[str]) -> str:
    """Find the function of ``code`` that every one of the tests calls. Raises Dropped if it is not clear."""
    try:
        defined = [node.name for node in ast.parse(code).body if isinstance(node, ast.FunctionDef)]
        called = [{node.id for node in ast.walk(ast.parse(check)) if isinstance(node, ast.Name)} for check in asserts]
    except SyntaxError as error:
        raise Dropped("tests or solution do not compile") from error
    # A solution may define helpers, and tests may call other functions: the one meant is named in all of them.
    names = [name for name in dict.fromkeys(defined) if all(name in each for each in called)]
    if len(names) != 1:
        raise Dropped("tests do not name one function")
    return names[0]
