"""The keeper of a session: a copy of the fork server that forks the session's process and watches it, call by call.

One server has many keepers, so sessions do not wait for each other. Between two calls the session's process is stopped:
no thread of it runs on while the model speaks. A keeper ends its process when the supervisor closes its end of the
control socket, and dies with the fork server. The process dies with either. It reads nothing that a program wrote.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from oapl_core.sandbox import linux, wire
from oapl_core.sandbox.attempt import Child
from oapl_core.sandbox.jail import Ceilings, Jail
from oapl_core.sandbox.prelude import Prelude
from oapl_core.sandbox.session_child import SessionTask, run_session

CALL = struct.Struct("<d")
"""From the supervisor: run what lies in the input, for at most so many seconds."""
MOST_CALLS = 1000
"""Calls of one session, at most: its total of CPU time is for so many."""
_KEEPERS = set[int]()
"""Process ids of the keepers of this server."""
_START_SECONDS = 20.0
_BUFFER = bytearray(4096)  # as in attempt.py: marks are counted and wiped


def answer(
    connection: socket.socket, jail: Jail, header: dict[str, Any], files: Sequence[int], prelude: Prelude
) -> None:
    """Forks a keeper for a request, which then needs none of the server's time; the files are closed here."""
    _reap()
    server_pid = os.getpid()
    pid = linux.fork()
    if pid == 0:
        try:
            connection.close()
            linux.die_with_parent(signal.SIGKILL)
            if os.getppid() == server_pid:  # otherwise the parent died before the line above could take effect
                _keep(jail, header, files, prelude)
        finally:
            os._exit(0)
    for fd in files:
        os.close(fd)
    _KEEPERS.add(pid)
    wire.send(connection, {"end": True, "broken": ""})


def _keep(jail: Jail, header: dict[str, Any], files: Sequence[int], prelude: Prelude) -> None:
    output, given, control_fd = files
    control = socket.socket(fileno=control_fd)
    marks, theirs = (end.detach() for end in socket.socketpair())
    os.set_blocking(marks, False)
    ceilings = Ceilings(
        cpu_s=int(header["cpu_s"] * MOST_CALLS) + 2,
        memory_bytes=(header["memory_mb"] << 20) + jail.imported_bytes(),
        file_bytes=int(header["output_mb"] * (1 << 20)),
        dies_with_parent=True,
    )
    server_pid = os.getpid()
    pid = jail.fork()
    if pid == 0:
        run_session(jail, SessionTask(given, output, theirs, ceilings), prelude, server_pid)
    os.close(theirs)
    child = Child.of(pid)
    try:
        _serve(child, control, marks, header)
    finally:
        child.close()


def _serve(child: Child, control: socket.socket, marks: int, header: dict[str, Any]) -> None:
    # Its first mark says that it is confined. The supervisor does not wait for that: its first call may be here before.
    facts = _watch(child, None, marks, header["cpu_s"] + _START_SECONDS, _START_SECONDS)
    while facts and not facts["is_over"]:
        os.kill(child.pid, signal.SIGSTOP)
        call = control.recv(CALL.size, socket.MSG_WAITALL)
        if len(call) < CALL.size:
            return
        _drain(marks)  # marks that a program wrote beyond its turn
        os.kill(child.pid, signal.SIGCONT)
        with suppress(OSError):  # it has closed its end, or never reads: its limits say so
            os.write(marks, b"1")
        facts = _watch(child, control, marks, header["cpu_s"], *CALL.unpack(call))
        if facts:
            wire.send(control, facts)


def _watch(
    child: Child, control: socket.socket | None, marks: int, cpu_s: float, wall_s: float
) -> dict[str, Any] | None:
    """Wait for the end of a call, or end it at a limit; returns its facts, or None if the supervisor is gone."""
    begun, cpu_before = time.monotonic(), child.cpu_s()
    poll, end = select.poll(), control.fileno() if control else -1
    for fd in (marks, child.pidfd, *([end] if control else [])):
        poll.register(fd, select.POLLIN)
    while True:
        wall_left = wall_s - (time.monotonic() - begun)
        cpu_left = cpu_s - (child.cpu_s() - cpu_before)
        exceeded = "cpu" if cpu_left <= 0 else "wall" if wall_left <= 0 else ""
        # no process can use up what is left of its CPU time before that, whatever the number of its threads
        wait_s = min(wall_left, max(cpu_left / (os.cpu_count() or 1), 0.002))
        ready = set() if exceeded else {fd for fd, _ in poll.poll(max(0.0, wait_s) * 1000)}
        if end in ready:  # while a call runs nothing is said but the end
            return None
        is_over = bool(exceeded) or child.pidfd in ready
        if is_over or (marks in ready and _drain(marks)):
            status, _ = child.reap(kill=bool(exceeded)) if is_over else (0, 0.0)
            ended = os.WTERMSIG(status) if is_over and os.WIFSIGNALED(status) else None
            used = {"cpu_s": max(0.0, child.cpu_s() - cpu_before), "wall_s": time.monotonic() - begun}
            return {"is_over": is_over, "exceeded": exceeded, "signal": ended, **used}
        if marks in ready:  # closed by the program: only its end, or a limit, can be waited for
            poll.unregister(marks)


def _drain(marks: int) -> bool:
    """Takes what lies in the socket; whether there was anything."""
    was_marked = False
    try:
        while moved := os.readv(marks, [_BUFFER]):
            was_marked = True
            _BUFFER[:] = bytes(len(_BUFFER))
            if moved < len(_BUFFER):
                break
    except (BlockingIOError, ConnectionError):
        pass
    return was_marked


def _reap() -> None:
    """Forgets keepers that have ended."""
    for pid in list(_KEEPERS):
        if os.waitpid(pid, os.WNOHANG)[0]:
            _KEEPERS.discard(pid)
