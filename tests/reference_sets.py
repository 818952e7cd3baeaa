"""HumanEval and MATH-500 as problems: lie outside the repository, in $OAPL_SHARED_DATA or ../shared/data.

A handful of HumanEval rows (MIT, see core/verdicts/humaneval_sample.LICENSE) is committed, so that the default tests
always exercise the kind.
"""

import ast
import gzip
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
SAMPLE = ROOT / "tests/core/verdicts/humaneval_sample.jsonl"
_OTHER: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.BitXor: ast.BitOr,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Lt: ast.GtE,
    ast.GtE: ast.Lt,
    ast.Gt: ast.LtE,
    ast.LtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.USub: ast.UAdd,
}


def shared_file(name: str) -> Path:
    """A file of the shared data; skips the test where it is missing."""
    folder = Path(os.environ.get("OAPL_SHARED_DATA", ROOT.parent / "shared" / "data"))
    path = folder / name
    if not path.is_file():
        pytest.skip(f"{path} is missing; put it there, or set OAPL_SHARED_DATA to the folder that has it")
    return path


def humaneval(path: Path) -> list[dict[str, Any]]:
    """The rows of HumanEval or of the sample."""
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return [json.loads(line) for line in text.splitlines()]


def math500() -> list[dict[str, Any]]:
    """The rows of MATH-500."""
    return [json.loads(line) for line in shared_file("math500.jsonl").read_text().splitlines()]


def problem(row: dict[str, Any]) -> dict[str, Any]:
    """A row of HumanEval as a problem of kind assert, as a problem set would hold it."""
    return {
        "problem_id": row["task_id"],
        "split": "heldout",
        "kind": "assert",
        "statement": row["prompt"],
        "starter_code": row["prompt"],
        "entry_point": row["entry_point"],
        "tests": [{"input": f"{row['test']}\ncheck({row['entry_point']})\n", "output": ""}],
    }


def fenced(source: str) -> str:
    """A response that holds this program."""
    return f"```python\n{source}\n```\n"


def solution(row: dict[str, Any]) -> str:
    """The reference solution."""
    return str(row["prompt"] + row["canonical_solution"])


def emptied(row: dict[str, Any]) -> str:
    """A solution that does nothing."""
    return f"{row['prompt']}    pass\n"


def mutated(row: dict[str, Any]) -> tuple[str, str]:
    """The reference solution with the first operator of its body exchanged, and what was exchanged.

    The few bodies without any operator get their first returned value negated.
    """
    tree = ast.parse(solution(row))
    body = len(row["prompt"].splitlines())
    nodes = [n for n in ast.walk(tree) if getattr(n, "lineno", 0) > body]
    for node in sorted(nodes, key=lambda n: (n.lineno, n.col_offset, -(n.end_col_offset or 0))):  # type: ignore[attr-defined]
        for holder, name in _operators(node):
            before = ast.unparse(node)
            operator = getattr(holder, name)
            if isinstance(operator, ast.Not):
                node.operand = ast.UnaryOp(ast.Not(), node.operand)  # type: ignore[attr-defined]
            elif isinstance(operator, list):
                operator[0] = _OTHER[type(operator[0])]()
            else:
                setattr(holder, name, _OTHER[type(operator)]())
            return ast.unparse(ast.fix_missing_locations(tree)), f"{before} -> {ast.unparse(node)}"
    returned = next(n for n in nodes if isinstance(n, ast.Return) and n.value is not None)
    before, value = ast.unparse(returned), returned.value
    assert value is not None
    returned.value = ast.UnaryOp(ast.Not(), value)
    return ast.unparse(ast.fix_missing_locations(tree)), f"{before} -> {ast.unparse(returned)}"


def _operators(node: ast.AST) -> Iterator[tuple[Any, str]]:
    if isinstance(node, ast.BinOp | ast.AugAssign | ast.BoolOp | ast.UnaryOp) and type(node.op) in {*_OTHER, ast.Not}:
        yield node, "op"
    elif isinstance(node, ast.Compare):
        yield node, "ops"
