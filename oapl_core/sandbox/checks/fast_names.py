"""A script whose loops stand at the top of the file, compiled so that its names are as fast as those of a function.

Python looks up the names of a module in a dictionary and those of a function in an array. A loop at the top of a file
is therefore a third slower than the same loop in a function. Checkers that run the whole file as a function body gain
that third and break programs with `global`. Here the file becomes a function body only where no program can tell the
difference:

- It has no scopes of its own but comprehensions.
- No name means something else (a built-in, say) before it is bound.
- Nothing looks at names, frames or annotations.

Everything else runs as `python program.py` would run it. Reads and writes nothing.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Container, Sequence
from itertools import takewhile
from types import CodeType

_NAME = "<program>"
_LOOP = re.compile(r"^(for|while)\b", re.MULTILINE)
_SCOPE = re.compile(r"\b(def|class|lambda|global|nonlocal|async|await|yield|return|__future__|del)\b")
_LOOKERS = """
globals locals vars dir eval exec compile __import__ importlib inspect _getframe _current_frames settrace setprofile gc
traceback tracemalloc pdb breakpoint pickle timeit runpy code __main__ __dict__ __annotations__ NameError
UnboundLocalError modules excepthook tb_frame __traceback__ exc_info ctypes
"""
_LOOKS_AT_NAMES = frozenset(_LOOKERS.split())
"""A program that names one of these could find that its names are local."""


def as_function(source: str, prelude: Container[str]) -> CodeType | None:
    """Return code that runs `source`, a program that compiles, with local names; None where that could be noticed.

    Execute it in a module's namespace, as the plain code. `prelude` has the names that the module has beforehand.
    Imports at the head of the file stay in the module.
    """
    if not _LOOP.search(source) or _SCOPE.search(source):  # nearly all programs end here, before the cost of parsing
        return None
    tree = ast.parse(source, "main.py")
    known = _Known(prelude)
    head = list(takewhile(known.take, tree.body))
    rest = tree.body[len(head) :]
    if not all(_is_harmless(node) for node in ast.walk(tree)) or not known.are_left_alone(rest):
        return None
    program = ast.parse("def _(): pass\n_()", "main.py")
    function, call = program.body
    assert isinstance(function, ast.FunctionDef)
    # No program can spell this name, so the function hides none of its names.
    function.body, function.name = rest, _NAME
    for node in ast.walk(call):
        if isinstance(node, ast.Name):
            node.id = _NAME
    return compile(ast.Module([*head, function, call], []), "main.py", "exec", dont_inherit=True)


class _Known:
    """Names that mean something before the body of the function begins: binding one there would hide it too early."""

    def __init__(self, prelude: Container[str]) -> None:
        self._prelude = prelude
        self._imported: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self._imported or name in self._prelude or hasattr(builtins, name) or name.startswith("__")

    def take(self, statement: ast.stmt) -> bool:
        """Return whether a statement belongs to the head; if so, the names that it binds are known from then on."""
        if not isinstance(statement, ast.Import | ast.ImportFrom):
            return False
        self._imported |= {(alias.asname or alias.name).partition(".")[0] for alias in statement.names}
        return True

    def are_left_alone(self, statements: Sequence[ast.stmt]) -> bool:
        """Return whether no known name is bound, unless an assignment that is always reached precedes its every use."""
        used, assigned = set[str](), set[str]()
        for statement in statements:
            nodes = list(ast.walk(statement))
            used |= {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
            bound = {name for node in nodes for name in _bindings(node)}
            if isinstance(statement, ast.Assign):
                assigned |= {name for name in bound - used if not name.startswith("__")}
            if any(name in self for name in bound - assigned):
                return False
        return True


def _bindings(node: ast.AST) -> list[str]:
    match node:
        case ast.Name(id=name, ctx=ast.Store()):
            return [name]
        case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
            return [name]
        case ast.MatchMapping(rest=str(name)):
            return [name]
        case ast.Import() | ast.ImportFrom():
            return ["__builtins__"]  # an import below the head: a known name, so that the program is left as it is
    return []


def _is_harmless(node: ast.AST) -> bool:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name not in _LOOKS_AT_NAMES
        case ast.alias(name=module):
            return module != "*" and not {*module.split(".")} & _LOOKS_AT_NAMES
        case ast.AnnAssign():
            return False  # a module evaluates the annotation and keeps it
    return True
