"""Work that a fork server does once for all its children: names, a module that holds them, and a warm interpreter.

A page of memory that a child writes to is copied first, and in CPython reading an object writes to it (its reference
count). A short program costs as much as the pages it touches: 3 microseconds each. Work that every child would do is
therefore done before the fork.
"""

from __future__ import annotations

import builtins
import gc
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

_HARNESS_IMPORTS = """
string re datetime collections heapq bisect copy math random statistics itertools functools operator io sys json
builtins typing
"""
_MODULES = _HARNESS_IMPORTS.split()
_STREAMS = ("stdin", "stdout", "stderr")
_REHEARSALS = 20
"""The interpreter specialises code after 8 calls or so."""


class Prelude:
    """The names that LiveCodeBench's harness imports ahead of every program; solutions rely on them (`List`)."""

    def __init__(self) -> None:
        """Import the names of the prelude, and prepare the module of the first test."""
        namespace: dict[str, Any] = {}
        exec("".join(f"from {m} import *\n" for m in _MODULES), namespace)
        exec("".join(f"import {m}\n" for m in _MODULES), namespace)
        own = {k: v for k, v in namespace.items() if k not in _STREAMS and not k.startswith("__")}
        self.names = {k: v for k, v in own.items() if builtins.__dict__.get(k) is not v}  # patched built-ins are seen
        self._ready: ModuleType | None = self._new_main()

    def main(self, name: str = "__main__") -> ModuleType:
        """Return a module for one test. The first is ready before the fork: filling it would copy 100 pages."""
        main, self._ready = self._ready or self._new_main(), None
        main.__name__ = name
        return main

    def set(self, name: str, value: Any) -> None:
        """Adds a name, in this process."""
        self.names[name] = value
        if self._ready:
            self._ready.__dict__[name] = value

    def remove(self, name: str) -> None:
        """Removes a name, if it exists, in this process."""
        self.names.pop(name, None)
        if self._ready:
            self._ready.__dict__.pop(name, None)

    def _new_main(self) -> ModuleType:
        main = ModuleType("__main__")
        main.__dict__.update(self.names, __builtins__=builtins, __file__="main.py")
        return main


def entry(names: Mapping[str, Any], name: str) -> Any:
    """Return the function that tests call: a method of class `Solution`, or a function of that name.

    Raises:
        NameError: the program has neither.
    """
    solution = names.get("Solution")
    if isinstance(solution, type) and hasattr(solution, name):
        return getattr(solution(), name)
    function = names.get(name)
    if not callable(function):
        raise NameError(f"the program defines no function {name!r}")
    return function


def declare(starter: str, names: dict[str, Any]) -> None:
    """Adds what a problem's starter code declares; code that does not run by itself declares nothing."""
    declared = dict(names)
    try:
        exec(compile(starter, "starter.py", "exec", dont_inherit=True), declared)
    except Exception:  # an unfinished piece of code, as starter code is
        return
    names.update(declared)


def hide_our_modules() -> None:
    """Make imports of oapl_core fail from now on, here and in every child; running code runs on."""
    for name in [name for name in sys.modules if name.split(".")[0] == "oapl_core"]:
        del sys.modules[name]


def rehearse(test: Callable[[], None]) -> None:
    """Runs `test` in this process, often enough for the interpreter to specialise the code that every child runs.

    The process's own streams are put back afterwards.
    """
    with _own_streams():
        for _ in range(_REHEARSALS):
            test()
    gc.collect()


@contextmanager
def _own_streams() -> Iterator[None]:
    names = ("stdin", "stdout", "stderr", "__stdin__", "__stdout__", "__stderr__")
    objects, files = [getattr(sys, name) for name in names], [os.dup(fd) for fd in range(3)]
    main = sys.modules["__main__"]
    try:
        yield
    finally:
        for name, stream in zip(names, objects, strict=True):
            setattr(sys, name, stream)
        for fd, file in enumerate(files):
            os.dup2(file, fd)
            os.close(file)
        sys.modules["__main__"] = main
