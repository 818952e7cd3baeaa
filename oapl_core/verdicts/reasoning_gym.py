"""Scores of reasoning-gym's tasks: ``[reward] function = "oapl_core.verdicts.reasoning_gym:score"`` (docs/data.md).

Runs in the worker processes of function_worker.py. Everything it needs is in the problem's `info`, as `oapl gym` wrote
it: the task, its settings, the entry. Reads and writes nothing.

Some tasks hand an answer to `eval`, or to sympy's parser, which does (n_queens, spiral_matrix, countdown, puzzle24 and
others, in version 0.1.25). Answers are untrusted text, so only plain expressions with values of a bounded size are
evaluated. Of others a task finds what it finds of a text that is no Python.
"""

import ast
import json
import math
import sys
import threading
import warnings
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

# At the top: without the package a run is refused before its first stage, and not where answers are scored.
with warnings.catch_warnings(action="ignore", category=SyntaxWarning):  # one of its packages has some
    import reasoning_gym

_EVALUATES = (str(Path(reasoning_gym.__file__).parent), str(Path("sympy", "parsing", "sympy_parser.py")))
_PLAIN = (
    *(ast.Expression, ast.Constant, ast.Name, ast.Load, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop),
    *(ast.List, ast.Tuple, ast.Set, ast.Dict),
)
_FUNCTIONS = frozenset("sin cos tan sec csc cot asin acos atan sinh cosh tanh exp log ln sqrt Abs abs".split())
_GROWING = frozenset({"exp", "sinh", "cosh"})
_MOST_BITS = 4096
"""Size of a computed value: 1,233 digits."""


class _Guard(threading.local):
    """Whether a text that this thread evaluates now may be code: the hook runs where the text is evaluated."""

    refuses = False


_GUARD = _Guard()


def score(problem: Mapping[str, Any], _response: str, verdict: Mapping[str, Any]) -> float:
    """Return the task's score of the answer, from 0 to 1; for a response without an answer its score of None.

    Raises:
        ValueError: the problem is not from `oapl gym`.
    """
    kept = json.loads(problem.get("info") or "{}")
    if not {"task", "config", "entry"} <= kept.keys():
        raise ValueError("the problem's `info` has no task of reasoning-gym; make the set with `oapl gym`")
    task, answer = _task(kept["task"], json.dumps(kept["config"])), verdict["answer"]
    _GUARD.refuses = answer is not None and not is_plain(answer)
    try:
        return float(task.score_answer(answer, kept["entry"]))
    finally:
        _GUARD.refuses = False


@lru_cache
def _task(name: str, config: str) -> Any:
    # some read word lists as they are made, so one serves all of its entries
    return reasoning_gym.create_dataset(name, **json.loads(config))


def is_plain(text: str) -> bool:
    """Tell if a text as Python only computes: numbers, texts, names, operators, lists of these, known functions.

    What it computes must be small as well: 9**9**9**9 is one call, which nothing ends and which takes all memory.
    """
    try:
        with warnings.catch_warnings(action="ignore"):  # `1 is 1` in somebody's text
            tree = ast.parse(text.strip(), mode="eval")
        nodes = ast.walk(tree)
        known = all(_is_known_call(node) if isinstance(node, ast.Call) else isinstance(node, _PLAIN) for node in nodes)
        if known:
            _bits(tree.body)
    except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError):
        return False
    return known


def _bits(node: ast.expr) -> float:
    """Bound the size of a value, in bits, before it is computed; infinite for texts and lists.

    Raises:
        OverflowError: what an operator or a function computes in it may be too large.
    """
    match node:
        case ast.Constant(value=int() as number):
            return float(number.bit_length())
        case ast.Constant(value=float() | complex() as number):
            bits = 64 + abs(math.frexp(abs(number))[1]) if math.isfinite(abs(number)) else math.inf
        case ast.Name(id=name):  # a letter stays a letter; `pi` and `E` are less than 4
            return 1 + (len(name) > 1 or name.isupper())
        case ast.UnaryOp(operand=operand):
            return _bits(operand)
        case ast.BinOp(left=left, op=operator, right=right):
            bits = _of_two(operator, _bits(left), _bits(right))
        case ast.Call(func=ast.Name(id=name), args=arguments):
            bits = max(map(_bits, arguments), default=1.0)
            bits = 1.5 * math.pow(2.0, bits) if name in _GROWING else bits
        case _:
            for child in ast.iter_child_nodes(node):
                if isinstance(child, ast.expr):
                    _bits(child)
            return math.inf
    if bits > _MOST_BITS:
        raise OverflowError
    return bits


def _of_two(operator: ast.operator, left: float, right: float) -> float:
    if isinstance(operator, ast.Pow | ast.BitXor):  # some write ^ for a power
        return max(1.0, left) * math.pow(2.0, right)
    if isinstance(operator, ast.LShift):
        return left + math.pow(2.0, right)
    return left + right if isinstance(operator, ast.Mult | ast.Div) else max(left, right) + 1


def _is_known_call(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Name) and call.func.id in _FUNCTIONS and not call.keywords


def _refuse_code(event: str, arguments: tuple[Any, ...]) -> None:
    """Refuse code, as a hook: the tasks' calls of `eval` are not ours to change. Imports have a file's name."""
    if event == "exec" and _GUARD.refuses and getattr(arguments[0], "co_filename", "") == "<string>":
        caller = sys._getframe(1).f_code.co_filename
        if caller.startswith(_EVALUATES[0]) or caller.endswith(_EVALUATES[1]):
            raise PermissionError("an answer is evaluated only if it is a plain expression")


sys.addaudithook(_refuse_code)
