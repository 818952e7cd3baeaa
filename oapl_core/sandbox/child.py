"""The process that runs a program: confines itself, then executes the source once per test, in a fresh `__main__`.

It holds the inputs of the program's tests and nothing else: no expected output, no other program. What it reports goes
to its fork server as fixed-size records; a program could forge them, but only about itself, which gains nothing: a
verdict depends on the bytes it printed. One kind of record is an exception, BROKEN, and is believed only before READY,
that is before the first untrusted byte was looked at.
"""

from __future__ import annotations

import atexit
import builtins
import io
import json
import os
import random
import resource
import struct
import sys
import threading
import traceback
from contextlib import suppress
from dataclasses import dataclass
from types import CodeType, ModuleType
from typing import Any, NoReturn

from oapl_core.sandbox import checks
from oapl_core.sandbox.fast_names import as_function
from oapl_core.sandbox.jail import Jail
from oapl_core.sandbox.prelude import Prelude

RECORD = struct.Struct("<BiIQQ80s")
"""kind, exit code, largest resident set in KiB, sizes of the output and the result file, name of an exception or a
message."""
READY, DONE, RAISED, OUT_OF_MEMORY, NOT_COMPILED, BROKEN = 1, 2, 3, 4, 5, 6

_real_open = open
RECURSION_LIMIT = 50_000
INT_DIGITS = 50_000


@dataclass(frozen=True)
class Task:
    """What a child inherits: one program and the open files of its tests."""

    source: str
    entry_point: str | None
    inputs: tuple[int, ...]
    output: int
    """One file for the standard output of all tests, one after the other: its size limit bounds them together."""
    results: int
    """The same for the JSON results, or for the proof that the checks ended; unused without `entry_point`."""
    errors: int
    status: int
    secret: int
    """Pipe with the secret of assert-style checks; -1 without such checks."""
    cpu_s: int
    memory_mb: int
    file_bytes: int

    def files(self) -> set[int]:
        """Everything that stays open."""
        return {*self.inputs, self.output, self.results, self.errors, self.status, self.secret} - {-1}


def run_child(jail: Jail, task: Task, prelude: Prelude, server_pid: int) -> NoReturn:
    """Runs `task` and exits, whatever happens: this process must never go on as a copy of the fork server."""
    try:
        _run(jail, task, prelude, server_pid)
    finally:
        os._exit(1)


def _run(jail: Jail, task: Task, prelude: Prelude, server_pid: int) -> None:
    """Confines this process and runs the tests in order; ends early after an abnormal test."""
    try:
        jail.confine(server_pid, task.cpu_s, task.memory_mb, task.file_bytes)
        _close_all_but(task.files())
    except OSError as error:
        _report(task, BROKEN, text=str(error))
        os._exit(1)
    sys.setrecursionlimit(RECURSION_LIMIT)
    sys.argv = ["main.py"]
    _report(task, READY)
    code = compiled(task)
    if not task.entry_point:
        code = as_function(task.source, prelude.names) or code
    if "/dev/stdin" in task.source:
        builtins.open = io.open = _open
        prelude.set("open", _open)
    if task.entry_point:
        prelude.remove(task.entry_point)  # or operator.add would answer for a program without its own
    if "random" in task.source:
        random.seed()  # children of one server would all draw the same numbers
    for number in range(len(task.inputs)):
        if not run_test(task, number, code, prelude.main()) or _is_marked():
            break
    os._exit(0)


def _is_marked() -> bool:
    """Whether the test left something that would reach into the next one: live threads or a closed thread pool."""
    return threading.active_count() > 1 or bool(getattr(threading, "_threading_atexits", ()))


def _close_all_but(keep: set[int]) -> None:
    low = 3
    for fd in sorted(keep):
        os.closerange(low, fd)
        low = fd + 1
    os.closerange(low, 4096)


def _report(task: Task, kind: int, exit_code: int = 0, text: str = "") -> None:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    sizes = os.fstat(task.output).st_size, os.fstat(task.results).st_size
    os.write(task.status, RECORD.pack(kind, exit_code, peak, *sizes, text.encode("ascii", "replace")[:80]))


def compiled(task: Task) -> CodeType:
    """The program's code; a program that does not compile ends the process."""
    os.dup2(task.errors, 2)
    try:
        return compile(task.source, "main.py", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError) as error:
        _complain("".join(traceback.format_exception_only(error)))
        _report(task, NOT_COMPILED, text=type(error).__name__)
        os._exit(1)


def run_test(task: Task, number: int, code: CodeType, main: ModuleType) -> bool:
    """One test in the module `main`; False when the process should not be used for another one."""
    for source, target in ((task.inputs[number], 0), (task.output, 1), (task.errors, 2)):
        os.dup2(source, target)
    os.lseek(1, 0, os.SEEK_END)  # an earlier test may have moved it
    _open_streams()
    main.__dict__.update(stdin=sys.stdin, stdout=sys.stdout)
    sys.modules["__main__"] = main
    exit_code = 0
    try:
        try:
            if task.secret >= 0 and task.entry_point:
                checks.prove(task.secret, task.results, task.inputs[number], code, main, task.entry_point)
            elif task.entry_point:
                _call(task, number, code, main)
            else:
                exec(code, main.__dict__)
        except SystemExit as ending:
            exit_code = _exit_code(ending)
        _finish()
    except MemoryError:
        _report(task, OUT_OF_MEMORY, 1, "MemoryError")
        return False
    except BaseException as error:  # whatever an untrusted program raises is a fact about it
        _report_exception(task, error)
        return False
    _report(task, DONE, exit_code)
    return True


def _open_streams() -> None:
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, "rb", closefd=False)), encoding="utf-8")
    sys.stdout = io.TextIOWrapper(io.BufferedWriter(io.FileIO(1, "wb", closefd=False)), encoding="utf-8")
    sys.stderr = io.TextIOWrapper(
        io.BufferedWriter(io.FileIO(2, "wb", closefd=False)), encoding="utf-8", errors="backslashreplace"
    )
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr  # type: ignore[misc]


def _call(task: Task, number: int, code: CodeType, main: ModuleType) -> None:
    """Calls the entry point with the JSON arguments of its input and writes its value, as JSON, to its result file.

    A value that is not JSON leaves the file empty: it cannot equal an expected value.
    """
    assert task.entry_point
    size = os.fstat(task.inputs[number]).st_size
    arguments = json.loads(os.pread(task.inputs[number], size, 0))
    exec(code, main.__dict__)
    solution = main.__dict__.get("Solution")
    if isinstance(solution, type) and hasattr(solution, task.entry_point):
        function = getattr(solution(), task.entry_point)
    else:
        function = main.__dict__[task.entry_point]
    value = function(*arguments)
    try:
        text = json.dumps(value, default=_plain)
    except (TypeError, ValueError):
        return
    data = memoryview(text.encode())
    while data:
        data = data[os.write(task.results, data) :]


def _plain(value: Any) -> Any:
    """numpy arrays and scalars as lists and numbers."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a {type(value).__name__} is not JSON")


def _open(file: Any, *arguments: Any, **named: Any) -> Any:
    """The built-in open, with an alias for the standard input: there is no /proc for /dev/stdin to point into."""
    return _real_open(os.dup(0) if file == "/dev/stdin" else file, *arguments, **named)


def _exit_code(ending: SystemExit) -> int:
    if ending.code is None:
        return 0
    if isinstance(ending.code, int):
        return ending.code & 0xFF
    print(ending.code, file=sys.stderr)
    return 1


def _finish() -> None:
    """What the interpreter does at its end: waits for threads, runs exit handlers, flushes."""
    for close_pool in getattr(threading, "_threading_atexits", ()):
        close_pool()
    for thread in threading.enumerate():
        if not thread.daemon and thread is not threading.main_thread():
            thread.join()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.__stdout__, sys.stderr, sys.__stderr__):
        if stream is not None and not getattr(stream, "closed", False):
            stream.flush()


def _complain(text: str) -> None:
    """Writes to stderr, unless the program has closed or filled it."""
    with suppress(OSError):
        os.write(2, text.encode("utf-8", "replace"))


def _report_exception(task: Task, error: BaseException) -> None:
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename not in ("main.py", checks.FILE_NAME):
        trace = trace.tb_next
    try:
        lines = traceback.format_exception(type(error), error, trace or error.__traceback__, limit=-8)
        _complain("".join(lines))
    except BaseException:  # an exception whose own __str__ raises; its name is all there is to say
        _complain(type(error).__name__)
    _report(task, RAISED, 1, type(error).__name__)
