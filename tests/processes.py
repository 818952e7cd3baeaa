"""Processes that a test starts: none outlives it, also where an assertion fails."""

import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import psutil


@contextmanager
def started(command: Sequence[object], **options: Any) -> Iterator["subprocess.Popen[Any]"]:
    """Start ``command`` with options of Popen; at the end, what of it and below it still lives is killed."""
    process = subprocess.Popen([str(word) for word in command], **options)
    try:
        yield process
    finally:
        kill(process)


def kill(process: "subprocess.Popen[Any] | psutil.Popen") -> None:
    """Kill a process, if it lives, with all below it; close its pipes."""
    below: list[psutil.Process] = []
    with suppress(psutil.NoSuchProcess):
        below = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
    for one in (process, *below):
        with suppress(psutil.NoSuchProcess, ProcessLookupError):
            one.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe and not pipe.closed:
            with suppress(BrokenPipeError):
                pipe.close()


def wait_until(holds: Callable[[], bool], limit_s: float = 60.0) -> None:
    """Wait until ``holds``; fails when that takes longer."""
    deadline = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline, f"waited for {limit_s:g} s"
        time.sleep(0.02)
