"""The process that becomes a program in another language than Python, or the parent of its compiler.

Both run in a child of a fork server, in a pid namespace of their own, confined before a byte of the program is used. A
program is executed in this very process, so that the server's clocks and its kill concern the program itself. A
compiler is several processes; this process starts them, waits for them and takes them down with it. Nothing here
judges.
"""

from __future__ import annotations

import os
import signal
import socket
import stat
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from oapl_core.sandbox import attempt
from oapl_core.sandbox.child import UNFIT, ProgramTask, confine
from oapl_core.sandbox.jail import Jail
from oapl_core.sandbox.prelude import Prelude

_PIECE = 1 << 20


def answer(connection: socket.socket, jail: Jail, header: dict[str, Any], files: Sequence[int], _: Prelude) -> None:
    """Answers a request that has a program for the system's tools; returns when it has ended."""
    running = attempt.start(jail, header, files, lambda task, server: run_process(jail, task, header, server))
    attempt.tell(connection, running)


def run_process(jail: Jail, task: ProgramTask, header: Mapping[str, Any], server_pid: int) -> NoReturn:
    """Runs what the header says and exits, whatever happens: this process must never continue as the fork server."""
    try:
        _run(jail, task, header, server_pid)
    finally:
        os._exit(UNFIT)


def _run(jail: Jail, task: ProgramTask, header: Mapping[str, Any], server_pid: int) -> None:
    content = os.pread(task.program, os.fstat(task.program).st_size, 0)
    confine(jail, server_pid, task.ceilings, task.errors, task.own_files(), (header["file"], content))
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and what it ignores a program would, too
        signal.signal(number, signal.SIG_DFL)
    environment = {"PATH": "/usr/bin", "LANG": "C.UTF-8", "HOME": jail.scratch, "TMPDIR": jail.scratch}
    os.dup2(task.inputs[0], 0)
    os.dup2(task.output, 1)
    if header["executable"]:
        os.dup2(task.output, 2)  # tools differ in where they complain
        _compile(task, header["command"], header["executable"], environment)
    os.dup2(task.errors, 2)
    os.write(task.marks, b"1")
    # From here on all is the program's: what cannot be executed was made of its source.
    os.closerange(3, 4096)
    try:
        os.execve(header["command"][0], header["command"], environment)
    except OSError as error:
        os.write(2, f"cannot be executed: {error}\n".encode())
        os._exit(1)


def _compile(task: ProgramTask, command: list[str], executable: str, environment: dict[str, str]) -> NoReturn:
    """Runs the compiler, copies what it made into the file of results, and exits with its exit code."""
    for fd in task.own_files():
        os.set_inheritable(fd, False)
    try:
        compiler = os.posix_spawn(command[0], command, environment)
    except OSError as error:  # not the program's fault: the mark is not set
        os.write(task.errors, f"{command[0]} cannot be started: {error}".encode())
        os._exit(UNFIT)
    os.write(task.marks, b"1")
    ended, status = 0, 0
    while ended != compiler:  # the first process of the namespace gets every orphan
        ended, status = os.wait()
    code = os.waitstatus_to_exitcode(status)
    if code == 0:
        code = _copy(executable, task.results)
    os._exit(code if 0 <= code < UNFIT else 1)


def _copy(executable: str, target: int) -> int:
    """Writes the file's content to `target`; an exit code."""
    try:
        source = os.open(executable, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        if not stat.S_ISREG(os.fstat(source).st_mode):
            return 1
        while piece := os.read(source, _PIECE):
            os.write(target, piece)
    except OSError as error:
        os.write(1, f"{executable}: {error}\n".encode())
        return 1
    return 0
