"""Programs that try to get out. A level counts only if every one of them was held on this very machine."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from oapl_core.errors import SandboxError
from oapl_core.sandbox.execution import Execution, Limits, Program
from oapl_core.temporary import temporary_folder

Runner = Callable[[Program, Sequence[bytes], Limits], list[Execution]]

_LIMITS = Limits(cpu_s=5, wall_s=15, memory_mb=512, output_mb=1)

_CANARY = """
import json, os, signal, socket, sys
secret, outside, parent = json.loads(input())
escaped = []

def attempt(name, action):
    try:
        action()
    except OSError:
        return
    escaped.append(name)

def fork():
    if os.fork() == 0:
        os._exit(0)

def signal_everything():
    for pid in (parent, os.getppid(), 1, -1):
        os.kill(pid, 0)

attempt("read a file of the host", lambda: open(secret).read())
attempt("read /etc/passwd", lambda: open("/etc/passwd").read())
attempt("write a file of the host", lambda: open(outside, "w").write("x"))
attempt("write into the read-only root", lambda: open(os.__file__, "a"))
attempt("open an internet socket", lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM))
attempt("open a unix socket", lambda: socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
attempt("fork", fork)
attempt("start a program", lambda: os.execv("/bin/true", ["true"]))
attempt("signal another process", signal_everything)
for change in (lambda: os.chmod(secret, 0), lambda: os.utime(secret, (0, 0)), lambda: os.truncate(secret, 0),
               lambda: os.open(secret, os.O_RDONLY | os.O_TRUNC)):
    try:
        change()  # may answer success; whether it did anything is looked at from outside
    except OSError:
        pass
attempt("see other processes", lambda: os.listdir("/proc/self"))
print(json.dumps(escaped))
"""


def prove(level: str, runner: Runner) -> None:
    """Runs the canaries through `runner`.

    Raises:
        SandboxError: one escaped, or the sandbox cannot run even a harmless program.
    """
    with temporary_folder() as folder:
        secret, outside = folder / "secret", folder / "outside"
        secret.write_text("a file of the host")
        folder.chmod(0o755)  # only the sandbox may be what keeps the canary from the file
        before = _state(secret)
        arguments = json.dumps([str(secret), str(outside), os.getpid()]).encode()
        held = _answer(runner, Program(_CANARY), arguments)
        escaped = json.loads(held.stdout) if held.completed and held.stdout else None
        written = outside.exists() or _state(secret) != before
    if escaped is None:
        raise SandboxError(f"level {level!r} is not available: its canary could not run ({_reason(held)})")
    if escaped or written:
        raise SandboxError(f"level {level!r} does not hold: a program could {', '.join(escaped) or 'write outside'}")


def _state(path: Path) -> tuple[int, int, int]:
    state = path.stat()
    return state.st_mode, state.st_mtime_ns, state.st_size


def _answer(runner: Runner, program: Program, data: bytes) -> Execution:
    executions = runner(program, [data], _LIMITS)
    if len(executions) != 1:
        raise SandboxError("the sandbox lost a canary")
    return executions[0]


def _reason(held: Execution) -> str:
    lines = held.stderr.decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else f"exit code {held.exit_code}, signal {held.signal}"
