"""One child of a fork server, from the outside: its files, its limits, its records, and the facts made of them.

Runs inside the fork server and never looks into what a program wrote. CPU time is the kernel's count for the whole
process; a test that exceeds its share is killed with its pid namespace, so nothing it started survives.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from oapl_core.sandbox import linux
from oapl_core.sandbox.checks import SECRET_BYTES
from oapl_core.sandbox.child import (
    BROKEN,
    DONE,
    NOT_COMPILED,
    OUT_OF_MEMORY,
    RAISED,
    READY,
    RECORD,
    Task,
    run_child,
)
from oapl_core.sandbox.jail import Jail
from oapl_core.sandbox.prelude import Prelude

Message = tuple[dict[str, Any], list[bytes]]
Ends = tuple[int, int]
Record = tuple[int, int, Ends, str]
"""Kind, exit code, where output and results end, and a text."""

MAX_TESTS = 64
"""Tests that share a child, at most; the supervisor sends the others again."""
_STDERR_TAIL = 2048
_START_SECONDS = 20.0


class ChildBroken(Exception):
    """The child failed before it looked at the program: our fault or the machine's, never a verdict."""


@dataclass
class Attempt:
    """A running child and what it has used."""

    task: Task
    cpu_s: float
    wall_s: float
    pid: int
    pidfd: int
    records: int
    """Read end of the child's record pipe."""
    ready: bool = False
    silent: bool = False
    """Its record pipe has been closed."""
    finished: int = 0
    test_start: float = field(default_factory=time.monotonic)
    cpu_before: float = 0.0
    peak_kb: int = 0
    output_end: int = 0
    """Where the output of the last finished test ends."""
    results_end: int = 0
    secret: bytes = b""
    """What the child can write to its result file only after the last assert-style check."""
    reaped: tuple[int, float] | None = None
    """Wait status and CPU seconds, once it is dead."""

    def reap(self, kill: bool) -> tuple[int, float]:
        """Waits for its end, after SIGKILL if `kill`; returns wait status and CPU seconds."""
        if self.reaped is None:
            if kill:
                os.kill(self.pid, signal.SIGKILL)
            _, status, usage = os.wait4(self.pid, 0)
            self.peak_kb = usage.ru_maxrss
            self.reaped = status, usage.ru_utime + usage.ru_stime
        return self.reaped

    def cpu_now(self) -> float:
        """CPU seconds of the child so far."""
        return self.reaped[1] if self.reaped else linux.cpu_seconds(self.pid)


def start(jail: Jail, header: dict[str, Any], source: str, inputs: list[bytes], prelude: Prelude) -> Attempt:
    """Makes the files and forks the child."""
    status_read, status_write = os.pipe()
    secret_read, secret_write = os.pipe() if header["is_checked"] else (-1, -1)
    task = Task(
        source=source,
        entry_point=header["entry_point"],
        inputs=tuple(_file(data) for data in inputs),
        output=_file(),
        results=_file(),
        errors=_file(),
        status=status_write,
        secret=secret_read,
        cpu_s=int(header["cpu_s"] * len(inputs)) + 2,
        memory_mb=header["memory_mb"],
        file_bytes=int(header["output_mb"] * (1 << 20)),
    )
    server_pid = os.getpid()
    pid = jail.fork()
    if pid == 0:
        run_child(jail, task, prelude, server_pid)
    os.close(status_write)
    os.set_blocking(status_read, False)
    attempt = Attempt(task, header["cpu_s"], header["wall_s"], pid, os.pidfd_open(pid), status_read)
    if header["is_checked"]:
        attempt.secret = os.urandom(SECRET_BYTES)  # made after the fork: the child has no copy in its memory
        os.write(secret_write, attempt.secret)
        os.close(secret_write)
        os.close(secret_read)
    return attempt


def close(attempt: Attempt) -> None:
    """Kills what is left and closes every file."""
    attempt.reap(kill=True)
    task = attempt.task  # its status fd was closed after the fork
    for fd in (*task.inputs, task.output, task.results, task.errors, attempt.pidfd, attempt.records):
        os.close(fd)


def _file(content: bytes | None = None) -> int:
    """An anonymous file; one with content (even none at all) is sealed: the program can only read it."""
    fd = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    if content is not None:
        os.write(fd, content)
        os.lseek(fd, 0, os.SEEK_SET)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    return fd


def watch(attempt: Attempt, control: socket.socket) -> Iterator[Message]:
    """Yields one message for every test that ended, until the child ends or the supervisor asks to stop.

    Raises:
        ChildBroken: the child failed before it was ready.
        EOFError: the supervisor is gone.
    """
    poll = select.poll()
    for fd in (attempt.records, attempt.pidfd, control.fileno()):
        poll.register(fd, select.POLLIN)
    total = len(attempt.task.inputs)
    while attempt.finished < total:
        wait_s, exceeded = _time_left(attempt)
        ready = {fd for fd, _ in poll.poll(wait_s * 1000)} if not exceeded else set()
        if control.fileno() in ready:
            if not control.recv(1):
                raise EOFError("the supervisor is gone")
            return
        records = _records(attempt, poll)
        for kind, exit_code, ends, text in records:
            _note(attempt, kind, text)
            if kind in (DONE, RAISED, OUT_OF_MEMORY, NOT_COMPILED) and attempt.finished < total:
                last = kind != DONE or attempt.finished + 1 == total
                if last:
                    attempt.reap(kill=True)
                yield _message(attempt, kind, "" if kind == DONE else text, ends, exit_code=exit_code)
                if last or max(attempt.output_end, attempt.results_end) > attempt.task.file_bytes // 2:
                    return
        if not records and (exceeded or attempt.pidfd in ready):
            yield _ending(attempt, exceeded)
            return


def _time_left(attempt: Attempt) -> tuple[float, str]:
    """Seconds until the next look at the child, and which limit it has exceeded, if any."""
    wall_left = (attempt.wall_s if attempt.ready else _START_SECONDS) - (time.monotonic() - attempt.test_start)
    cpu_left = attempt.cpu_s - (attempt.cpu_now() - attempt.cpu_before)
    exceeded = "cpu" if cpu_left <= 0 else "wall" if wall_left <= 0 else ""
    return min(wall_left, max(cpu_left / (os.cpu_count() or 1), 0.002)), exceeded


def _records(attempt: Attempt, poll: select.poll) -> list[Record]:
    try:
        data = os.read(attempt.records, RECORD.size * 100)
    except BlockingIOError:
        return []
    if not data and not attempt.silent:
        poll.unregister(attempt.records)  # the program closed the pipe; only its end can be waited for
        attempt.silent = True
    found = []
    for offset in range(0, len(data) - RECORD.size + 1, RECORD.size):
        kind, exit_code, peak_kb, output_end, results_end, text = RECORD.unpack_from(data, offset)
        attempt.peak_kb = peak_kb
        found.append((kind, exit_code, (output_end, results_end), text.rstrip(b"\0").decode("ascii", "replace")))
    return found


def _note(attempt: Attempt, kind: int, text: str) -> None:
    """Start of the untrusted part, or a failure before it."""
    if kind == BROKEN and not attempt.ready:
        raise ChildBroken(text)
    if kind == READY and not attempt.ready:
        attempt.ready = True
        attempt.test_start, attempt.cpu_before = time.monotonic(), attempt.cpu_now()


def _ending(attempt: Attempt, exceeded: str) -> Message:
    """The message for a test whose child died without a record, or was killed for its time."""
    status, cpu = attempt.reap(kill=bool(exceeded))
    if not attempt.ready:
        raise ChildBroken(f"the child ended before it was ready (wait status {status})")
    if os.WIFEXITED(status):
        return _message(attempt, DONE, exit_code=os.WEXITSTATUS(status))
    number = os.WTERMSIG(status)
    if not exceeded and number == signal.SIGKILL:
        # Programs cannot send signals; the kernel does so at RLIMIT_CPU, and when the machine is out of memory.
        if cpu - attempt.cpu_before < attempt.cpu_s:
            raise ChildBroken("the child was killed by the system; the machine may be out of memory")
        exceeded = "cpu"
    return _message(attempt, DONE, exceeded=exceeded, signal=number)


def _message(
    attempt: Attempt, kind: int, raised: str = "", ends: Ends | None = None, exceeded: str = "", **ending: int
) -> Message:
    """Facts and bytes of the test that just ended; moves on to the next one.

    `ends` is the child's word on where its output stops. It may lie: then it chooses among bytes that it wrote itself.
    """
    number, task = attempt.finished, attempt.task
    now, cpu = time.monotonic(), attempt.cpu_now()
    output_end, results_end = ends or (task.file_bytes, task.file_bytes)
    stdout, attempt.output_end = _content(task.output, attempt.output_end, output_end)
    result, attempt.results_end = _content(task.results, attempt.results_end, results_end)
    facts = {
        "exit_code": ending.get("exit_code"),
        "signal": ending.get("signal"),
        "raised": raised,
        "compile_error": kind == NOT_COMPILED,
        "memory_limit": kind == OUT_OF_MEMORY,
        "cpu_limit": exceeded == "cpu",
        "wall_limit": exceeded == "wall",
        "output_limit": max(attempt.output_end, attempt.results_end) >= task.file_bytes,
        "cpu_s": max(0.0, cpu - attempt.cpu_before),
        "wall_s": now - attempt.test_start,
        "peak_memory_mb": attempt.peak_kb / 1024,
        "checks_ended": bool(attempt.secret) and result == attempt.secret,
        "fresh": number == 0,
    }
    attempt.finished, attempt.test_start, attempt.cpu_before = number + 1, now, cpu
    return facts, [stdout, result, _tail(task.errors)]


def _content(fd: int, start: int, end: int) -> tuple[bytes, int]:
    """What lies between the two offsets, and where it ends: the file may be shorter."""
    end = max(start, min(end, os.fstat(fd).st_size))
    return os.pread(fd, end - start, start), end


def _tail(fd: int) -> bytes:
    size = os.fstat(fd).st_size
    return os.pread(fd, _STDERR_TAIL, max(0, size - _STDERR_TAIL))
