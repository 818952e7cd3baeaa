"""The supervisor's end of a session: one untrusted process that keeps its state from call to call.

Its sandbox was started for sessions: `Sandbox(serves=("sessions",))`.
"""

from __future__ import annotations

import math
import os
import signal
import socket
from contextlib import ExitStack
from dataclasses import dataclass

from oapl_core.sandbox import wire
from oapl_core.sandbox.execution import Limits
from oapl_core.sandbox.keeper import CALL
from oapl_core.sandbox.sandbox import Sandbox

_ANSWER_SECONDS = 60.0  # beside the limits of a call, on a machine that is overloaded
_MOST_BYTES = 1 << 20  # printed by a call: a model reads no more


class SessionLost(Exception):
    """The session's keeper died or fell silent, for no reason of the program's."""


@dataclass(frozen=True)
class SessionReply:
    """Reply to one call: its output, and how it ended."""

    output: str
    """Standard output and error together; its middle is left out where it is longer than a MiB."""
    is_over: bool
    """The process has ended, and its state is gone."""
    exceeded: str
    """The limit that ended it: `cpu` or `wall`; empty: none did."""
    signal: int | None
    """The signal that ended it."""
    cpu_s: float
    wall_s: float


class Session:
    """A running session; any number of them share a fork server. Close it. Not thread-safe."""

    def __init__(self, sandbox: Sandbox, limits: Limits) -> None:
        """Start a process for it.

        Raises:
            SandboxError: three attempts failed.
        """
        self._limits = limits
        self._output, self._given = (os.memfd_create("session", os.MFD_CLOEXEC) for _ in range(2))
        self._control, theirs = socket.socketpair()
        self._control.settimeout(limits.wall_s + _ANSWER_SECONDS)
        self.is_over = False
        """Whether its process has ended."""
        # our copy of the other end is closed once the server has its own: the end would not be seen otherwise
        with theirs, ExitStack() as unstarted:
            unstarted.callback(self.close)
            sandbox.start("sessions", limits, [self._output, self._given, theirs.fileno()])
            unstarted.pop_all()

    def run(self, source: str, wall_s: float = math.inf) -> SessionReply:
        """Runs a piece of source in the session's module, in ``wall_s`` seconds where the limit is longer.

        Raises:
            SessionLost: its keeper died; the state is gone.
        """
        assert not self.is_over, "the session's process has ended"
        try:
            os.ftruncate(self._output, 0)
            os.ftruncate(self._given, 0)
            data = memoryview(source.encode("utf-8", "replace"))
            position = 0
            while position < len(data):
                position += os.pwrite(self._given, data[position:], position)
            self._control.sendall(CALL.pack(min(wall_s, self._limits.wall_s)))
            facts = wire.receive(self._control)
        except (EOFError, OSError) as error:
            self.close()
            raise SessionLost(f"the session's keeper died ({error})") from None
        self.is_over = facts["is_over"]
        if facts["signal"] == signal.SIGKILL and not facts["exceeded"]:
            self.close()
            raise SessionLost("the session was killed by the system; the machine may be out of memory")
        return SessionReply(self._printed(), **facts)

    def _printed(self) -> str:
        size, half = os.fstat(self._output).st_size, _MOST_BYTES // 2
        if size <= _MOST_BYTES:
            data = os.pread(self._output, size, 0)
        else:
            data = os.pread(self._output, half, 0) + b"\n...\n" + os.pread(self._output, half, size - half)
        return data.decode("utf-8", "replace")

    def close(self) -> None:
        """End the session's process. Safe to call twice."""
        self.is_over = True
        self._control.close()
        for fd in (self._output, self._given):
            if fd >= 0:
                os.close(fd)
        self._output = self._given = -1
