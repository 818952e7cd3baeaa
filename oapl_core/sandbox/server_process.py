"""The supervisor's end of one fork server: starts it by exec, sends programs, reads facts, notices its death."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
from collections.abc import Collection, Generator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from oapl_core.errors import SandboxError
from oapl_core.sandbox import wire
from oapl_core.sandbox.execution import Execution, Limits, Program
from oapl_core.sandbox.request import ChildRequest

_CODE_ROOT = str(Path(__file__).resolve().parents[2])
_BOOT = "import sys; sys.path.append(sys.argv[1]); from oapl_core.sandbox.fork_server import main; main(sys.argv[2:])"
_START_SECONDS = 60.0  # imports of numpy and sympy from a cold disk
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_ENVIRONMENT = {"LANG": "C.UTF-8", "PYTHONHASHSEED": "0", **dict.fromkeys(_THREADS, "1")}
"""All that a server and its children see of the environment. Hashes are the same everywhere: the order of a set of
texts would otherwise be another draw on each server."""


class ServerLost(Exception):
    """The fork server died or fell silent; what it was running must be sent to another one."""


class ProgramNotRun(Exception):
    """The fork server lives, but could not start a child for this program."""


class ServerProcess:
    """One fork server. Not thread-safe: one user at a time."""

    def __init__(self, level: str, libraries: Sequence[str], serves: Collection[str] = ()) -> None:
        """Starts it and waits until it is ready at `level`, for programs in Python and what else it `serves`.

        Raises:
            SandboxError: this level cannot be set up here; the message has the kernel's reason. ServerLost: a kill.
        """
        # -P -s -S: only the standard library and what is named here can be imported; -B: nothing is written.
        ours, theirs = socket.socketpair()
        self._errors = os.memfd_create("fork-server-stderr")
        command = [_interpreter(), "-P", "-s", "-S", "-B", "-c", _BOOT, _CODE_ROOT, str(theirs.fileno()), level]
        self._libraries = tuple(libraries)
        self._process = subprocess.Popen(
            [*command, ",".join(serves), *package_paths(libraries)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
            pass_fds=[theirs.fileno()],
            start_new_session=True,  # Ctrl-C in a terminal reaches the supervisor alone, which ends the server
            cwd="/",
            env=_ENVIRONMENT,
        )
        theirs.close()
        self._connection = ours
        self._connection.settimeout(_START_SECONDS)
        try:
            wire.receive(self._connection)
        except (EOFError, OSError) as error:
            self.close()
            said = self._complaint()  # a server that is killed says nothing
            raise (SandboxError(f"level {level!r} is not available: {said}") if said else self._lost(error)) from None

    @property
    def pid(self) -> int:
        """Process id of the watcher; killing it takes the whole server down."""
        return self._process.pid

    @property
    def is_closed(self) -> bool:
        """Whether it was closed, so that it runs nothing any more."""
        return self._connection.fileno() < 0

    def close(self) -> None:
        """Ends the server and every child of it. Safe to call twice."""
        self._connection.close()
        self._process.kill()
        self._process.wait()

    def executions(self, program: Program, inputs: Sequence[bytes], limits: Limits) -> Generator[Execution, None, None]:
        """Runs tests of one program in order in one child, yields each as it ends. Closing the iterator stops it.

        May end early: after an abnormal test, 64 tests, or much output. The rest is to be sent again.

        Raises:
            ServerLost: the server died. ProgramNotRun: it could not start the child.
        """
        self._connection.settimeout(limits.wall_s + _START_SECONDS)
        with closing(ChildRequest(program, inputs, limits, self._libraries)) as request:
            try:
                wire.send_request(self._connection, request.header, request.files)
                while "end" not in (facts := wire.receive(self._connection)):
                    try:
                        yield request.execution(facts)
                    except BaseException:  # whoever stopped us here: the server must not answer the next request late
                        self._stop()
                        raise
            except (EOFError, OSError) as error:
                raise self._lost(error) from None
            if facts["broken"]:
                raise ProgramNotRun(f"{facts['broken']} {request.complaint()}".strip())

    def start(self, serves: str, limits: Limits, files: Sequence[int]) -> None:
        """Starts what then needs this server's life but none of its time, and hands over copies of `files`.

        Raises:
            ServerLost: the server died.
        """
        self._connection.settimeout(_START_SECONDS)
        header: dict[str, Any] = {**vars(limits), "serves": serves, "libraries": list(self._libraries)}
        try:
            wire.send_request(self._connection, header, files)
            wire.receive(self._connection)
        except (EOFError, OSError) as error:
            raise self._lost(error) from None

    def _stop(self) -> None:
        """Asks for the end of the running request and reads up to it. Raises ServerLost."""
        try:
            self._connection.sendall(wire.STOP)
            while "end" not in wire.receive(self._connection):
                continue
        except (EOFError, OSError) as error:
            raise self._lost(error) from None

    def _lost(self, error: Exception) -> ServerLost:
        return ServerLost(f"the fork server died ({self._complaint() or error})")

    def _complaint(self) -> str:
        """Return the last line that the server wrote before it died."""
        size = os.fstat(self._errors).st_size
        lines = os.pread(self._errors, 4096, max(0, size - 4096)).decode("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else ""

    def __del__(self) -> None:
        """Closes the file that caught its complaints."""
        os.close(self._errors)


def _interpreter() -> str:
    """Return the interpreter below a virtual environment, if this user may run it."""
    base = getattr(sys, "_base_executable", sys.executable)
    return base if os.access(base, os.X_OK) else sys.executable


def package_paths(names: Sequence[str]) -> list[str]:
    """Return folders (or files) of installed packages, with the shared libraries that wheels keep next to them
    (`numpy.libs`).

    The packages are installed: Sandbox has looked.
    """
    paths = []
    for name in names:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            continue
        path = Path(spec.origin).parent if spec.submodule_search_locations else Path(spec.origin)
        paths += [str(p) for p in (path, path.parent / f"{name}.libs") if p.exists()]
    return paths
