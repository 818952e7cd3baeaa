"""Starts a heavy stage as its own process tree, watches it, and leaves nothing of it behind.

Between the orchestrator and the stage stands ``guard.py``. Reads the stage's progress lines; writes
``logs/<stage>.log`` and a stage line of the ledger.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from oapl_core.errors import DataError, Diverged, Interrupted, OaplError, SandboxError, StageFailed
from oapl_core.planning.plan import made_by, stage_label
from oapl_core.progress import PREFIX
from oapl_core.run_folder.integrity import rotten_files
from oapl_core.run_folder.ledger import StageEntry
from oapl_core.run_folder.lock import descriptors
from oapl_core.run_folder.recorded import Recorded
from oapl_core.run_folder.run import Run
from oapl_core.stage import ERROR_PREFIX, disk_full
from oapl_core.temporary import locked_folder

_TIMED_OUT = 124
_FULL_DISK_BYTES = 2**20
_BY_EXIT_CODE: dict[int, type[OaplError]] = {2: DataError, 3: SandboxError, 5: Diverged, 130: Interrupted}


def run_stage(
    run: Recorded,
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
    label, log, command = _process(run, verb, arguments)
    start = time.monotonic()
    with log.open("ab") as sink:
        offset = sink.tell()
        code = _watch(command, sink.fileno(), lambda: following(log, offset, on_progress), timeout_s)
    failure = _failure(label, code, log, offset) if code else None
    _record(run, label, start, code, failure)
    if failure:
        _look_for_rot(run, code, on_progress)
        raise failure


@contextmanager
def beside(
    run: Recorded,
    verb: str,
    arguments: Sequence[str],
    on_progress: Callable[[str], None],
    timeout_s: float | None = None,
) -> Iterator[None]:
    """Run a stage during the body of the context: the body's end waits for it, the body's failure ends it.

    After ``timeout_s`` seconds of waiting the whole tree is killed.

    That it failed is said through ``on_progress`` and recorded, but not raised: the same work follows as a step.
    """
    label, log, command = _process(run, verb, arguments)
    start, over = time.monotonic(), threading.Event()
    with log.open("ab") as sink:
        offset = sink.tell()
        poll = following(log, offset, on_progress)

        def forward() -> None:
            while not over.wait(0.2):
                poll()

        thread = threading.Thread(target=forward, name=label)
        with guarded(command, sink.fileno()) as guard:
            thread.start()
            try:
                yield
                code = guard.wait(timeout_s)
            except subprocess.TimeoutExpired:
                code = _TIMED_OUT
            finally:
                over.set()
                thread.join()
    poll()
    failure = _failure(label, code, log, offset) if code else None
    _record(run, label, start, code, failure)
    if failure:
        on_progress(str(failure))


def _look_for_rot(run: Recorded, code: int, on_progress: Callable[[str], None]) -> None:
    """Say which files the disk has changed, if a stage failed of itself: it may have stumbled over one."""
    if code in (DataError.exit_code, StageFailed.exit_code):
        names, unread = rotten_files(run)
        for name in names:
            on_progress(f"{name} does not hold the bytes that were recorded: the next start makes it again")
        if unread:
            on_progress(f"{unread:,} recorded files were not compared with their hashes: `oapl check {run.root}` does")


def _record(run: Recorded, label: str, start: float, code: int, failure: OaplError | None) -> None:
    made = made_by(run, label) if isinstance(run, Run) and not code else []
    run.ledger.append(StageEntry(label, round(time.monotonic() - start, 3), code, str(failure or ""), made))


def _process(run: Recorded, verb: str, arguments: Sequence[str]) -> tuple[str, Path, list[str]]:
    """Return label, log file and command of a stage's process."""
    label = stage_label(verb, arguments)
    log = run.log(label)
    log.parent.mkdir(parents=True, exist_ok=True)
    python = str(run.python or sys.executable)
    return label, log, [python, "-m", f"oapl_core.{verb}", str(run.root), *arguments]


WAITING_THREADS = {"GOMP_SPINCOUNT": "2000"}
"""OpenMP's threads soon wait asleep: spinning gains nothing alone, and beside other work it costs most of the speed
(docs/benchmarks/trainer.md)."""


@contextmanager
def guarded(
    command: Sequence[str],
    sink: int | None = None,
    errors: int | None = None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """Run ``command`` under a guard that writes to the file descriptor ``sink``, or where we write.

    ``errors`` is given where standard error goes elsewhere (a descriptor, or subprocess.PIPE), ``environment`` where it
    is not ours. Leaving the context ends the whole tree; so does our own death, even by SIGKILL, because a pipe closes
    with us. The guard keeps the run folders that we hold until the tree is gone. The tree's temporary files lie in a
    folder of its own, which goes with it.
    """
    given = os.environ if environment is None else environment
    reading, writing = os.pipe()
    folder, lock = locked_folder()
    guard = subprocess.Popen(
        [sys.executable, "-m", "oapl_core.guard", str(reading), folder, *command],
        stdin=subprocess.DEVNULL,
        stdout=sink,
        stderr=sink if errors is None else errors,
        env={**WAITING_THREADS, **_kept_elsewhere(), **given, "TMPDIR": folder},
        pass_fds=(reading, lock, *descriptors()),
        start_new_session=True,  # Ctrl-C reaches us alone, and we end the tree in order
    )
    os.close(reading)
    try:
        yield guard
    finally:
        os.close(writing)
        guard.wait()
        shutil.rmtree(folder, ignore_errors=True)  # left by a guard that was killed itself
        os.close(lock)


def _kept_elsewhere() -> dict[str, str]:
    """Return variables that keep places of the caller: a cluster that runs already, code compiled for earlier
    stages.
    """
    place = tempfile.gettempdir()
    return {"RAY_TMPDIR": place, "TORCHINDUCTOR_CACHE_DIR": f"{place}/torchinductor_{os.getuid()}"}


def _watch(
    command: Sequence[str], sink: int, forward: Callable[[], Callable[[], None]], timeout_s: float | None
) -> int:
    """Run ``command`` under a guard to its end, forwarding what it says; returns its exit code."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    timed_out = False
    with guarded(command, sink) as guard:
        poll = forward()
        while guard.poll() is None and not timed_out:
            time.sleep(0.1)
            poll()
            timed_out = deadline is not None and time.monotonic() > deadline
    poll()
    return _TIMED_OUT if timed_out else guard.wait()


def following(log: Path, offset: int, on_progress: Callable[[str], None]) -> Callable[[], None]:
    """Return a function that hands over the progress lines that the log gained since its last call."""
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
    if shutil.disk_usage(log.parent).free < _FULL_DISK_BYTES:  # then the stage could not even write why it failed
        return disk_full(log.parent.parent)
    how = f"was killed by signal {code - 128}" if code > 128 else f"exited with code {code}"
    how = "ran past its time limit and was ended" if code == _TIMED_OUT else how
    last = next((line.strip() for line in reversed(lines) if line.strip()), "it printed nothing")
    return StageFailed(f"{label} {how}; last line: {last[:300]!r}; see {log}; run the same command again to continue")
