"""The process of a session: runs one piece of source after another in one module, each when it is told to.

Like ``child.py`` it confines itself first and holds nothing but what its own model wrote. One byte tells it to run the
source in its input, and it answers by one byte at the end. All prints, tracebacks included, go to one file. A program
could read or write such bytes itself, and would only change its own next result.
"""

from __future__ import annotations

import ast
import os
import random
import sys
from dataclasses import dataclass
from typing import Any, NoReturn

from oapl_core.sandbox.child import RECURSION_LIMIT, complain_of, confine, open_streams
from oapl_core.sandbox.jail import Ceilings, Jail
from oapl_core.sandbox.prelude import Prelude


@dataclass(frozen=True)
class SessionTask:
    """Task of a session's process, inherited by the fork."""

    given: int
    """The file in which the source lies."""
    output: int
    """File for everything that the process prints."""
    marks: int
    """A socket: bytes that say `run` and `has ended`."""
    ceilings: Ceilings
    """Ceilings of the whole session."""


def run_session(jail: Jail, task: SessionTask, prelude: Prelude, server_pid: int) -> NoReturn:
    """Serves until nobody asks any more; never returns, as it is a copy of the fork server."""
    try:
        confine(jail, server_pid, task.ceilings, task.output, {task.given, task.output, task.marks})
        sys.setrecursionlimit(RECURSION_LIMIT)
        sys.argv = ["main.py"]
        # the same draws in every session: what a call gives depends on the calls before it alone
        random.seed(0)
        if numpy := sys.modules.get("numpy"):
            numpy.random.seed(0)
        main = prelude.main()
        sys.modules["__main__"] = main
        nothing = os.open("/dev/null", os.O_RDONLY)
        os.write(task.marks, b"1")
        while os.read(task.marks, 1):
            source = os.pread(task.given, os.fstat(task.given).st_size, 0).decode("utf-8", "replace")
            for fd, target in ((nothing, 0), (task.output, 1), (task.output, 2)):
                os.dup2(fd, target)
            os.lseek(1, 0, os.SEEK_END)
            open_streams()
            _run(source, main.__dict__)
            os.write(task.marks, b"1")
    finally:
        os._exit(1)


def _run(source: str, names: dict[str, Any]) -> None:
    """Runs the source; shows the value of a last expression, as an interpreter does."""
    names.update(stdin=sys.stdin, stdout=sys.stdout)
    try:
        tree = ast.parse(source, "main.py")
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, "main.py", "exec", dont_inherit=True), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "main.py", "eval", dont_inherit=True), names)
            if value is not None:
                print(repr(value))
        sys.stdout.flush()
    except SystemExit:  # ends the piece, not the session
        pass
    except BaseException as error:  # whatever a model's program raises, it is told
        complain_of(error)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):  # the file is full, or the program has closed it
            continue
