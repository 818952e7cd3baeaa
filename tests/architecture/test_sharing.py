"""Which tests run on one worker: those that share something slow to make."""

import ast

import pytest

from tests.architecture.sources import python_files, tree
from tests.sharing import piece


def asks_for_a_server(node: ast.AST) -> bool:
    """Whether a test or a fixture takes the `prefect` fixture, by a marker or as a parameter."""
    if isinstance(node, ast.FunctionDef):
        return node.name.startswith("test_") and "prefect" in {one.arg for one in node.args.args}
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.usefixtures":
        return "prefect" in {one.value for one in node.args if isinstance(one, ast.Constant)}
    return False


def test_every_file_that_asks_for_the_prefect_server_runs_on_its_worker() -> None:
    tests = [path for path in python_files("tests") if path.name.startswith("test_")]
    asking = {str(path) for path in tests if any(map(asks_for_a_server, ast.walk(tree(path))))}
    assert "tests/flows/test_experiment.py" in asking
    assert {path for path in asking if piece(path) != "prefect"} == set()


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("tests/core/training/test_resume.py", "tests/core/training/"),
        ("tests/extras/guidance/test_with_prefixes.py", "tests/core/training/"),
        ("tests/architecture/test_size.py", "tests/architecture/"),
        ("tests/core/rollouts/test_engine.py", "tests/core/rollouts/test_engine.py"),
    ],
)
def test_a_file_belongs_to_what_shares_something_with_it(file: str, name: str) -> None:
    assert piece(file) == name
