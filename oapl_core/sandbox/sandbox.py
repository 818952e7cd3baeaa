"""The sandbox: a pool of fork servers that runs untrusted programs and returns facts. Never runs one unprotected.

Reads programs and inputs from its caller; writes nothing on disk. Starting it proves the isolation level with canaries.
"""

from __future__ import annotations

import os
import queue
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from importlib.util import find_spec
from types import TracebackType
from typing import Literal, Self, TypeVar

from oapl_core.errors import SandboxError
from oapl_core.sandbox.canaries import prove
from oapl_core.sandbox.execution import Execution, Limits, Program
from oapl_core.sandbox.server_process import ProgramNotRun, ServerLost, ServerProcess

Level = Literal["full", "fallback"]
DEFAULT_LIBRARIES = ("numpy",)
"""For a sandbox used alone; the verifier passes its own setting."""
_TRIES = 3  # an overloaded machine may kill a server; three times in a row is no accident

Item = TypeVar("Item")
Result = TypeVar("Result")


class Sandbox:
    """Fork servers, one per core unless said otherwise. Thread-safe; use as a context manager.

    A server that dies is replaced and its program sent again; the processes are started by exec, so a large parent
    costs nothing and later imports in the parent (an engine, CUDA) do no harm.
    """

    def __init__(
        self,
        workers: int | None = None,
        minimum_level: Level = "fallback",
        level: Level | None = None,
        libraries: Sequence[str] = DEFAULT_LIBRARIES,
    ) -> None:
        """`level` forces one level, otherwise the strongest that works, down to `minimum_level`; `libraries` are the
        installed packages that programs may import. Raises ValueError, or SandboxError for a missing package."""
        if workers is not None and workers < 1:
            raise ValueError(f"workers must be at least 1, got {workers}")
        self.workers = workers or len(os.sched_getaffinity(0))
        self._candidates: tuple[Level, ...] = (level,) if level else ("full", "fallback")
        if not level and minimum_level == "full":
            self._candidates = ("full",)
        if missing := [name for name in libraries if find_spec(name) is None]:
            raise SandboxError(f"library {missing[0]!r} is not installed here; install it or take it off the list")
        self._libraries = tuple(libraries)
        self._level: Level | None = None
        self._idle: queue.SimpleQueue[ServerProcess] = queue.SimpleQueue()
        self._servers: set[ServerProcess] = set()
        self._owner = os.getpid()
        self.servers_lost = 0
        """How many fork servers died and were replaced."""

    def __enter__(self) -> Self:
        """Starts the servers and proves the level.

        Raises:
            SandboxError: no level can be proven here; nothing untrusted was run.
        """
        reasons = []
        for level in self._candidates:
            try:
                self._start(level)
                return self
            except SandboxError as error:
                self.close()
                reasons.append(str(error))
        raise SandboxError(
            f"no sandbox level works here ({'; '.join(reasons)}); allow user namespaces "
            "(sysctl kernel.unprivileged_userns_clone=1, or a container with --security-opt seccomp=unconfined) "
            "or use Linux 5.13 or newer with landlock"
        )

    def __exit__(self, _k: type[BaseException] | None, _e: BaseException | None, _t: TracebackType | None) -> None:
        """Ends every server and child."""
        self.close()

    def close(self) -> None:
        """Ends every server and child. In a process forked from the owner it does nothing."""
        if os.getpid() != self._owner:  # a fork of the caller shares the servers, and must not end them
            return
        while self._servers:
            self._servers.pop().close()
        self._idle = queue.SimpleQueue()

    @property
    def level(self) -> Level:
        """The proven isolation level."""
        assert self._level, "the sandbox has not been started"
        return self._level

    @property
    def server_pids(self) -> list[int]:
        """Process ids of the fork servers' watchers."""
        return [server.pid for server in self._servers]

    def _start(self, level: Level) -> None:
        """Proves the level on the first server: the others are made in the same way."""
        first = ServerProcess(level, self._libraries)
        self._servers.add(first)
        try:
            prove(level, lambda program, inputs, limits: list(first.executions(program, inputs, limits)))
        except (ServerLost, ProgramNotRun) as error:
            raise SandboxError(f"level {level!r} is not available: {error}") from None
        self._level = level
        self._idle.put(first)
        for _ in range(self.workers - 1):
            self._servers.add(server := ServerProcess(level, self._libraries))
            self._idle.put(server)

    @contextmanager
    def _server(self) -> Iterator[ServerProcess]:
        """An idle server; one that died meanwhile is replaced."""
        server = self._idle.get()
        try:
            yield server
        except ServerLost:
            self.servers_lost += 1
            self._servers.discard(server)
            server.close()
            server = ServerProcess(self.level, self._libraries)
            self._servers.add(server)
            raise
        finally:
            self._idle.put(server)

    def executions(self, program: Program, inputs: Sequence[bytes], limits: Limits) -> Generator[Execution, None, None]:
        """Runs the inputs in order in ONE child and yields a non-empty prefix of their executions as they end.

        Only the first is `fresh`. The iterator ends early after an abnormal test, after 64 tests or after much output;
        send the rest again. Closing it kills the child.

        Raises:
            SandboxError: three attempts failed for reasons that are not the program's.
        """
        first = True
        for number in range(1, _TRIES + 1):
            try:
                with self._server() as server, closing(server.executions(program, inputs, limits)) as executions:
                    for execution in executions:
                        first = False
                        yield execution
                    assert not first, "a child ended without a result"
                    return
            except (ServerLost, ProgramNotRun) as error:
                if not first:
                    return  # what was yielded stands; the caller sends the rest again
                if number == _TRIES:
                    raise SandboxError(f"a program could not be run in {_TRIES} attempts: {error}") from None

    def run(self, program: Program, inputs: Sequence[bytes], limits: Limits) -> list[Execution]:
        """Runs every input in a process of its own; one execution per input. Raises SandboxError as `executions`."""
        return [next(iter(list(self.executions(program, [one], limits)))) for one in inputs]

    def stream(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """`function` of every item, in order, on every server at once; at most 4 items per server are in flight.

        `function` calls `executions` or `run`; memory does not grow with the number of items.
        """
        waiting: deque[Future[Result]] = deque()
        with ThreadPoolExecutor(self.workers, thread_name_prefix="sandbox") as threads:
            try:
                for item in items:
                    waiting.append(threads.submit(function, item))
                    if len(waiting) >= 4 * self.workers:
                        yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
            finally:
                for future in waiting:
                    future.cancel()
