"""Starts a heavy stage as its own process tree, watches it, and leaves nothing of it behind.

Between the orchestrator and the stage stands a *guard* process: it reaps every descendant (also those in sessions of their
own, which torch's and vLLM's workers are), notices by a closed pipe that the orchestrator is gone, even by SIGKILL, and
then ends the whole tree. Reads the stage's progress lines; writes ``logs/<stage>.log`` and a stage line of the ledger.
"""

import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from oapl_core.artifacts import Run
from oapl_core.errors import DataError, OaplError, SandboxError, StageFailed
from oapl_core.ledger import StageEntry
from oapl_core.progress import PREFIX
from oapl_core.stage import ERROR_PREFIX

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_TIMED_OUT = 124
_GRACE_S = 5.0
_BY_EXIT_CODE: dict[int, type[OaplError]] = {2: DataError, 3: SandboxError}


def run_stage(
    run: Run,
    verb: str,
    arguments: Sequence[str] = (),
    on_progress: Callable[[str], None] = print,
    timeout_s: float | None = None,
) -> None:
    """Run ``python -m oapl_core.<verb> RUN_DIR ...`` to its end, forwarding its progress lines.

    Args:
        run: the run folder; its config names the engine's interpreter.
        verb: module below ``oapl_core``, for example ``rollouts.generate``.
        arguments: further arguments, for example ``["--round", "0"]``.
        on_progress: called with each progress line.
        timeout_s: seconds after which the whole tree is killed.

    Raises:
        OaplError: the stage's own one-line error, or StageFailed with the last lines of its log.
    """
    label = " ".join([verb, *(a.lstrip("-") for a in arguments)])
    log = run.root / "logs" / f"{label.replace(' ', '_')}.log"
    python = str(run.config.engine_python or sys.executable)
    command = [python, "-m", f"oapl_core.{verb}", str(run.root), *arguments]
    start = time.monotonic()
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as sink:
        offset = sink.tell()
        code = _guarded(command, sink.fileno(), lambda: _forward(log, offset, on_progress), timeout_s)
    run.ledger.append(StageEntry(label, round(time.monotonic() - start, 3), code))
    if code:
        raise _failure(label, code, log, offset)


def _guarded(command: Sequence[str], sink: int, forward: Callable[[], Callable[[], None]], timeout_s: float | None) -> int:
    """Run ``command`` under a guard until it ends; the pipe's end tells the guard that we are gone."""
    reading, writing = os.pipe()
    guard = subprocess.Popen(
        [sys.executable, "-m", "oapl_core.launch", str(reading), *command],
        stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, pass_fds=(reading,), start_new_session=True,
    )  # fmt: skip
    os.close(reading)
    poll, timed_out = forward(), False
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    try:
        while guard.poll() is None:
            if deadline is not None and time.monotonic() > deadline:
                timed_out = True
                break
            time.sleep(0.1)
            poll()
    finally:
        os.close(writing)  # whatever ends the loop, the guard ends the tree
        code = guard.wait()
        poll()
    return _TIMED_OUT if timed_out else code


def _forward(log: Path, offset: int, on_progress: Callable[[str], None]) -> Callable[[], None]:
    """A function that hands over the progress lines that the log gained since its last call."""
    state = {"offset": offset}

    def poll() -> None:
        with log.open("rb") as file:
            file.seek(state["offset"])
            chunk = file.read()
        complete = chunk[: chunk.rfind(b"\n") + 1]
        state["offset"] += len(complete)
        for line in complete.decode(errors="replace").splitlines():
            if line.startswith(PREFIX):
                on_progress(line.removeprefix(PREFIX))

    return poll


def _failure(label: str, code: int, log: Path, offset: int) -> OaplError:
    with log.open("rb") as file:
        file.seek(offset)
        lines = file.read().decode(errors="replace").splitlines()
    for line in reversed(lines):
        if line.startswith(ERROR_PREFIX):
            return _BY_EXIT_CODE.get(code, StageFailed)(line.removeprefix(ERROR_PREFIX))
    how = f"was killed by signal {code - 128}" if code > 128 else f"exited with code {code}"
    how = "ran past its time limit and was ended" if code == _TIMED_OUT else how
    last = next((line.strip() for line in reversed(lines) if line.strip()), "it printed nothing")
    return StageFailed(f"{label} {how}; last line: {last[:300]!r}; see {log}; run the same command again to continue")


# The guard's own process ----------------------------------------------------------------------------------------------


def main(arguments: Sequence[str]) -> int:
    """Guard one command: ``python -m oapl_core.launch PIPE_FD COMMAND...``; returns its exit code (128 + n for a signal)."""
    pipe = int(arguments[0])
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    stop = {"now": False}
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: stop.update(now=True))
    child = subprocess.Popen(
        arguments[1:], stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=lambda: libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    )
    poller = select.poll()
    poller.register(pipe, select.POLLHUP)
    while child.poll() is None and not stop["now"]:
        if poller.poll(100):
            stop["now"] = True
    code = child.poll()
    end_descendants(_GRACE_S if code is None else 1.0)
    if code is None:
        return 128 + signal.SIGTERM
    return 128 - code if code < 0 else code


def end_descendants(grace_s: float) -> None:
    """SIGTERM, then SIGKILL, everything below this process, also what has moved to another session."""
    deadline = time.monotonic() + grace_s
    sent: set[int] = set()
    while True:
        _reap()
        living = _descendants(os.getpid())
        if not living:
            return
        late = time.monotonic() > deadline
        for process in living:
            if late or process not in sent:
                sent.add(process)
                _kill(process, signal.SIGKILL if late else signal.SIGTERM)
        time.sleep(0.05)


def _reap() -> None:
    try:
        while os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return


def _kill(process: int, number: int) -> None:
    try:
        os.kill(process, number)
    except ProcessLookupError:
        return


def _descendants(root: int) -> list[int]:
    """Process ids below ``root``, zombies left out."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                fields = Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if fields[0] != "Z":
                children.setdefault(int(fields[1]), []).append(int(entry))
    found, stack = list[int](), [root]
    while stack:
        below = children.get(stack.pop(), [])
        found += below
        stack += below
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
