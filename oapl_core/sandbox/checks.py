"""Assert-style tests in the child that runs the program: the proof that the checks ran to their end.

The fork server sends the child a secret after the fork; the child writes it to its result file after the last check. In
between the secret lies on the evaluation stack of `prove` alone, where neither frames nor the garbage collector show
it, so neither exit code 0, an early exit, nor forged output is a proof. Values cross from the program to the checks as
plain data, the checks have built-ins of their own, and tracing is refused, so always-equal objects and patched
built-ins gain nothing. What remains is in the threat model (sandbox/__init__.py): this is weaker evidence than outputs
that are compared in another process.
"""

from __future__ import annotations

import builtins
import os
import sys
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

SECRET_BYTES = 16
FILE_NAME = "checks.py"
_REFUSED = ("sys.settrace", "sys.setprofile", "code.__new__", "gc.get_objects", "gc.get_referrers", "gc.get_referents")
_HEAP_TYPE = 1 << 9
"""Py_TPFLAGS_HEAPTYPE: set for every class that Python code defines."""
_SCALARS = frozenset({type(None), bool, int, float, complex, str, bytes, range})
_flags = type.__dict__["__flags__"].__get__  # a metaclass may lie about it
_BUILTINS = dict(vars(builtins))
# Where the functions below look up their built-ins: the program can patch the real module, this process keeps a copy.
globals()["__builtins__"] = _BUILTINS
_write = os.write


def prove(secret: int, results: int, checks: int, code: CodeType, main: ModuleType, entry_point: str) -> None:
    """Runs the program, then the checks (Python source in the file `checks`), then writes the secret to `results`.

    Whatever the program or a check raises leaves this function, and no secret was written.
    """
    sys.addaudithook(_refuse)
    _show(results, os.read(secret, SECRET_BYTES), _run(_take(checks), _program(code, main, entry_point)))


def _show(results: int, secret: bytes, has_ended: bool) -> None:
    assert has_ended
    _write(results, secret)


def _run(checks: CodeType, names: dict[str, Any]) -> bool:
    exec(checks, names)
    return True


def _take(file: int) -> CodeType:
    """The compiled checks; their file and the standard input are empty from now on."""
    checks = compile(os.pread(file, os.fstat(file).st_size, 0), FILE_NAME, "exec", dont_inherit=True)
    null = os.open("/dev/null", os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(null, file)
    os.close(null)
    return checks


def _program(code: CodeType, main: ModuleType, entry_point: str) -> dict[str, Any]:
    """Executes the program; returns a copy of its names for the checks, in which its functions return plain data."""
    names = vars(main)
    exec(code, names)
    ours = {k: _guarded(v) if type(v) is FunctionType and v.__globals__ is names else v for k, v in names.items()}
    entry, solution = names.get(entry_point), names.get("Solution")
    if entry is None and isinstance(solution, type):
        entry = getattr(solution(), entry_point, None)
    if not callable(entry):
        raise NameError(f"the program defines no function {entry_point!r}")
    ours[entry_point] = _guarded(entry)
    return {**ours, "__builtins__": dict(_BUILTINS)}


def _guarded(function: Callable[..., Any]) -> Callable[..., Any]:
    def candidate(*arguments: Any, **named: Any) -> Any:
        return plain(function(*arguments, **named))

    return candidate


def plain(value: Any) -> Any:
    """`value` without any method that Python code wrote: subclasses of built-in types become those, arrays lists.

    Raises:
        TypeError: a class, or an object of one that is nothing built-in; its `==` could say anything.
    """
    kind = type(value)
    if kind in _SCALARS:
        return value
    if kind is list or kind is tuple or kind is set or kind is frozenset:
        return kind(plain(v) for v in value)
    if kind is dict:
        return {plain(k): plain(v) for k, v in value.items()}
    if kind.__module__ == "numpy" and hasattr(value, "tolist"):
        return plain(value.tolist())
    if not _flags(kind) & _HEAP_TYPE and kind is not type:
        return _guarded(value) if callable(value) else _built_in(kind, value)
    for base, copy in _COPIES:
        if issubclass(kind, base):
            return plain(copy(value))
    raise TypeError(f"the checks need plain data, not a {kind.__name__}")


def _built_in(kind: type, value: Any) -> Any:
    """An object of a class written in C, such as a generator, a date or a deque: its elements may still be anything."""
    if hasattr(kind, "__next__"):
        return _plain_each(value)
    return [plain(v) for v in value] if hasattr(kind, "__iter__") else value


def _plain_each(values: Iterator[Any]) -> Iterator[Any]:
    for value in values:
        yield plain(value)


_COPIES: tuple[tuple[type, Callable[[Any], Any]], ...] = (
    (int, int.__pos__),
    (float, float.__pos__),
    (str, lambda text: str.__add__(text, "")),
    (list, lambda values: [*list.__iter__(values)]),
    (tuple, lambda values: (*tuple.__iter__(values),)),
    (dict, lambda pairs: {key: dict.__getitem__(pairs, key) for key in dict.__iter__(pairs)}),
    (set, lambda values: {*set.__iter__(values)}),
)


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    """Audit hook: no way to trace the checks, to look into memory, or to exchange the code of a function."""
    changes_code = event == "object.__setattr__" and arguments[1] == "__code__"
    if changes_code or event in _REFUSED or event.startswith("ctypes."):
        raise PermissionError(f"{event} is not for programs under assert-style checks")
