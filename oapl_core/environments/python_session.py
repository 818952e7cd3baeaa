"""A Python tool: `python(code)` runs in a session of the sandbox that keeps its variables and files from call to call.

The threat model is that of oapl_core/sandbox. One sandbox serves every trajectory of the process; a session is started
at a trajectory's first call. The pickle holds the code that was run. A continued trajectory runs it again and gets the
same state (clocks apart), as a session draws the same at random each time.
"""

import atexit
import threading
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from oapl_core.environments.protocol import ToolError, TrajectoryRoom
from oapl_core.environments.tools import ToolEnvironment
from oapl_core.sandbox.execution import Limits
from oapl_core.sandbox.room import sessions_in_descriptors, sessions_in_memory
from oapl_core.sandbox.sandbox import DEFAULT_LIBRARIES, Level, Sandbox
from oapl_core.sandbox.session import Session, SessionLost, SessionReply

_OVER = "the session was restarted, and its variables and files are gone"
_LEAST_S = 0.05
"""A call with less time than this is not begun: it would only cost the session."""
_TRIES = 2


class _Shared:
    """The sandboxes of this process, by their settings."""

    lock = threading.Lock()
    sandboxes: ClassVar[dict[tuple[Any, ...], Sandbox]] = {}

    @classmethod
    def sandbox(cls, libraries: tuple[str, ...], minimum_level: Level, workers: int) -> Sandbox:
        with cls.lock:
            key = libraries, minimum_level, workers
            if key not in cls.sandboxes:
                started = Sandbox(workers, minimum_level, libraries=libraries, serves=("sessions",))
                cls.sandboxes[key] = started.__enter__()
                atexit.register(cls.close)  # they would end with this process as well, a moment later
            return cls.sandboxes[key]

    @classmethod
    def close(cls) -> None:
        with cls.lock:
            while cls.sandboxes:
                cls.sandboxes.popitem()[1].close()


class PythonSession(ToolEnvironment):
    """Environment with a single tool, `python`."""

    def __init__(
        self,
        cpu_s: float = 10.0,
        wall_s: float = 30.0,
        memory_mb: int = 512,
        output_mb: float = 1.0,
        libraries: Sequence[str] = DEFAULT_LIBRARIES,
        minimum_level: Level = "fallback",
        servers: int = 2,
    ) -> None:
        """Keep the limits, which are those of one call (sandbox/execution.py); ``servers``: fork servers that all
        sessions share.
        """
        self._limits = Limits(cpu_s, wall_s, memory_mb, output_mb)
        self._sandbox = tuple(libraries), minimum_level, servers
        self._history = list[str]()
        """Code that was run in the present session."""
        self._session: Session | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_session": None, "_history": list(self._history)}

    def tools(self) -> Sequence[Callable[..., str]]:
        """Offer the interpreter as the only tool."""
        return [self.python]

    def fitting(self, processes: int = 1) -> TrajectoryRoom:
        """Return the sessions that fit on this machine, by memory and by descriptors."""
        in_memory, limits = sessions_in_memory(self._limits, processes), self._limits
        descriptors = sessions_in_descriptors()
        if in_memory <= descriptors:
            return TrajectoryRoom(in_memory, f"each may take settings.memory_mb={limits.memory_mb} MiB of memory")
        return TrajectoryRoom(descriptors, "each takes three open files, of which `ulimit -Hn` allows no more")

    def close(self) -> None:
        """End the session of this trajectory."""
        if self._session:
            self._session.close()
            self._session = None

    def python(self, code: str) -> str:
        """Runs Python code in a session that keeps its variables, and shows what it prints and its last value.

        Args:
            code: Python source.

        Returns:
            What was printed, and the value of a last expression.
        """
        reply = self._replied(code)
        if not reply.is_over:
            self._history.append(code)
            return reply.output.rstrip("\n") or "(no output)"
        shown = reply.output.rstrip("\n")
        raise ToolError(f"the code {self._ended(reply)}" + (f"\n{shown}" if shown else ""))

    def _ended(self, reply: SessionReply) -> str:
        """Forget a session whose process has ended; why it has, in words."""
        self.close()
        self._history.clear()
        limit = {
            "cpu": f"more than {self._limits.cpu_s:g} s of CPU time",
            "wall": f"more than {reply.wall_s:.2g} s",
        }
        why = f"took {limit[reply.exceeded]}" if reply.exceeded else "ended the interpreter"
        return f"{why}; {_OVER}"

    def _replied(self, code: str) -> SessionReply:
        for number in range(1, _TRIES + 1):
            try:
                session = self._ready()
                return session.run(code, self._time())
            except SessionLost:  # the machine's fault: once more, from what was run before
                self.close()
                if number == _TRIES:
                    raise
        raise AssertionError("unreachable")

    def _ready(self) -> Session:
        """Return the session, with its whole history run in it."""
        if self._session is None:
            session = Session(_Shared.sandbox(*self._sandbox), self._limits)
            try:
                for code in self._history:
                    reply = session.run(code, self._time())
                    if reply.is_over:  # it may ask for the time, or a machine under load took longer
                        raise ToolError(f"what was run before was run again, and {self._ended(reply)}")
            except BaseException:  # it has a part of its variables: the next call begins again
                session.close()
                raise
            self._session = session
        return self._session

    def _time(self) -> float:
        """Return the rest of the turn's time, in seconds.

        Raises:
            ToolError: nothing is left.
        """
        left = self.seconds_left
        if left < _LEAST_S:
            raise ToolError("it was not run: the turn has no time left")
        return left
