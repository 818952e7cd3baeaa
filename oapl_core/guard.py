"""The guard: a small process between the orchestrator and one stage, so that nothing of the stage outlives either.

The guard adopts every descendant, also those in sessions of their own, like torch's and vLLM's workers. A closed pipe
tells it that the orchestrator is gone, even by SIGKILL. It then ends the whole tree: SIGTERM, a pause, SIGKILL. The
tree's temporary files go with it. Standard library only, so that it starts in a few milliseconds. Reads its command
line.
"""

import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_GRACE_S = 5.0


def main(arguments: Sequence[str]) -> int:
    """Run ``python -m oapl_core.guard PIPE_FD FOLDER COMMAND...``; returns the command's exit code (128 + n for signal
    n).

    FOLDER, the command's TMPDIR, is removed at the end.
    """
    pipe, folder, *command = int(arguments[0]), *arguments[1:]
    libc = ctypes.CDLL(None, use_errno=True)
    # Daemons that a stage starts (Ray, engines) lose their parent and become ours, or they would outlive the tree.
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    stop = {"now": False}
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: stop.update(now=True))
    # A scheduler's warning, which it sends to every process: the stage's to answer, or to ignore as it starts out.
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=lambda: libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL),
    )
    signal.signal(signal.SIGUSR1, lambda *_: child.send_signal(signal.SIGUSR1))
    poller = select.poll()
    poller.register(pipe, select.POLLHUP)  # the pipe closes with the orchestrator, even by SIGKILL
    while child.poll() is None and not stop["now"]:
        if poller.poll(100):
            stop["now"] = True
    code = child.poll()
    # Python takes its own handlers away as it ends, and a warning that comes then must not become our exit code.
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    end_descendants(_GRACE_S if code is None else 1.0)
    shutil.rmtree(folder, ignore_errors=True)
    if code is None:
        return 128 + signal.SIGTERM
    return 128 - code if code < 0 else code


def end_descendants(grace_s: float) -> None:
    """End everything below this process by SIGTERM, then SIGKILL, also processes in another session."""
    deadline = time.monotonic() + grace_s
    sent: set[int] = set()
    foreign: set[int] = set()
    while True:
        _reap()
        living = [process for process in _descendants(os.getpid()) if process not in foreign]
        if not living:
            return
        # Again and again: a process may fork between the listing and the signal.
        late = time.monotonic() > deadline
        for process in living:
            if late or process not in sent:
                sent.add(process)
                if not _kill(process, signal.SIGKILL if late else signal.SIGTERM):
                    foreign.add(process)
        time.sleep(0.05)


def _reap() -> None:
    try:
        while os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return


def _kill(process: int, number: int) -> bool:
    """Send a signal; returns False for a process of another user, which nobody here can end."""
    try:
        os.kill(process, number)
    except OSError as error:
        return not isinstance(error, PermissionError)
    return True


def _descendants(root: int) -> list[int]:
    """Return the process ids below ``root``, zombies left out."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                # a process's name may end within a character, and another user's process may be hidden
                fields = Path("/proc", entry, "stat").read_bytes().rpartition(b")")[2].split()
            except OSError:
                continue
            if fields[0] != b"Z":
                children.setdefault(int(fields[1]), []).append(int(entry))
    processes, stack = list[int](), [root]
    while stack:
        below = children.get(stack.pop(), [])
        processes += below
        stack += below
    return processes


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
