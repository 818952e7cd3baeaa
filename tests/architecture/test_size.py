"""No file and no function grows past what a person reads in one go; names say what a file is about."""

import ast
import re
from pathlib import Path

import pytest

from tests.architecture.sources import PACKAGES, python_files, text, tree

FORBIDDEN_NAMES = {"util", "utils", "helper", "helpers", "common", "misc", "base", "manager", "managers"}
TRAINING_LOOP = {Path("oapl_core/training/train.py"), Path("oapl_core/training/loop.py")}
LIMITS = {"tests": (600, 80), "bench": (600, 80)}  # lines of a file, of a function
DEFAULT_LIMITS = (300, 50)
TRAINING_LOOP_LIMIT = 80
ALL = python_files(*PACKAGES, "data", "bench", "tests")


def functions(path: Path) -> list[tuple[str, int]]:
    """Name and number of lines (signature, docstring and body) of every function in the file."""
    defs = [node for node in ast.walk(tree(path)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return [(node.name, (node.end_lineno or 0) - node.lineno + 1) for node in defs]


@pytest.mark.parametrize("path", ALL, ids=str)
def test_file_is_short(path: Path) -> None:
    limit, _ = LIMITS.get(path.parts[0], DEFAULT_LIMITS)
    assert len(text(path).splitlines()) < limit


@pytest.mark.parametrize("path", ALL, ids=str)
def test_functions_are_short(path: Path) -> None:
    _, limit = LIMITS.get(path.parts[0], DEFAULT_LIMITS)
    if path in TRAINING_LOOP:
        limit = TRAINING_LOOP_LIMIT
    assert not [(name, lines) for name, lines in functions(path) if lines >= limit]


def test_files_are_named_after_what_they_hold() -> None:
    assert not [str(path) for path in ALL if FORBIDDEN_NAMES & set(re.split(r"_+", path.stem))]


def test_no_folder_of_the_core_is_deeper_than_one() -> None:
    assert not [str(path) for path in python_files("oapl_core") if len(path.parts) > 3]


@pytest.mark.parametrize("path", python_files("oapl_core"), ids=str)
def test_module_says_what_it_does(path: Path) -> None:
    assert ast.get_docstring(tree(path))
