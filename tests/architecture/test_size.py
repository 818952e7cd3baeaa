"""No file and no function grows past what a person reads in one go; names say what a file is about."""

import ast
import io
import re
import tokenize
from pathlib import Path

from tests.architecture.sources import PACKAGES, python_files, text, tree

FORBIDDEN_NAMES = {"util", "utils", "helper", "helpers", "common", "misc", "base", "manager", "managers"}
LIMITS = {"tests": (700, 80), "bench": (600, 80)}  # lines of a file, of a function
DEFAULT_LIMITS = (450, 50)
WHY_SHARE = 0.04  # comments by lines of code: where a reader would ask "why this way?", a line answers
LAYOUT = {tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
ALL = python_files(*PACKAGES, "data", "bench", "examples", "tests")


def limits(path: str) -> tuple[int, int]:
    """Lines that a file, and a function in it, stay below."""
    return LIMITS.get(path.split("/")[0], DEFAULT_LIMITS)


def functions(path: Path) -> list[tuple[str, int]]:
    """Name and number of lines (signature, docstring and body) of every function in the file."""
    defs = [node for node in ast.walk(tree(path)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return [(node.name, (node.end_lineno or 0) - node.lineno + 1) for node in defs]


def test_files_are_short() -> None:
    lines = {str(path): len(text(path).splitlines()) for path in ALL}
    assert not {path: found for path, found in lines.items() if found >= limits(path)[0]}


def test_functions_are_short() -> None:
    found = [(f"{path}: {name}", lines, limits(str(path))[1]) for path in ALL for name, lines in functions(path)]
    assert not [(name, lines) for name, lines, limit in found if lines >= limit]


def test_files_are_named_after_what_they_hold() -> None:
    assert not [str(path) for path in ALL if FORBIDDEN_NAMES & set(re.split(r"_+", path.stem))]


def test_no_folder_of_the_core_is_deeper_than_two() -> None:
    """A package, and in a large one a folder for each duty."""
    assert not [str(path) for path in python_files("oapl_core") if len(path.parts) > 4]


def test_modules_say_what_they_do() -> None:
    assert not [str(path) for path in python_files("oapl_core") if not ast.get_docstring(tree(path))]


def code_and_comments(path: Path) -> tuple[int, int]:
    """Lines of code (neither blank nor docstring) and lines with a comment that a person wrote for people."""
    strings = [
        node for node in ast.walk(tree(path)) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    ]
    documented = {line for node in strings for line in range(node.lineno, (node.end_lineno or 0) + 1)}
    code, comments = set[int](), 0
    for token in tokenize.generate_tokens(io.StringIO(text(path)).readline):
        if token.type == tokenize.COMMENT:
            comments += not re.match(r"#\s*(noqa|type: ignore)", token.string)
        elif token.type not in LAYOUT:
            code |= set(range(token.start[0], token.end[0] + 1))
    return len(code - documented), comments


def test_the_code_says_why() -> None:
    counts = [code_and_comments(path) for path in python_files(*PACKAGES)]
    code, comments = (sum(column) for column in zip(*counts, strict=True))
    assert comments >= WHY_SHARE * code, f"{comments} comments in {code:,} lines of code"


def test_no_line_is_hidden_from_the_formatter() -> None:
    pragma = re.compile(r"#\s*fmt:\s*(skip|off)")
    assert pragma.search("x = 1  # fmt: " + "skip")
    assert not [str(path) for path in ALL if pragma.search(text(path))]
