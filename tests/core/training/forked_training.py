"""Trains rounds, each in a process of its own that shares the imports, which take ten seconds of a core.

``python -m tests.core.training.forked_training`` imports once. It reads a line of JSON for each training (``_begin``),
forks, and prints ``STARTED pid`` and ``ENDED code``. Other modules that import as much run there, too (``printed``).
"""

import atexit
import importlib
import json
import os
import runpy
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from oapl_core.run_folder.run import Run
from oapl_core.stage import run_verb

ROOT = Path(__file__).parents[3]
MODULE = "tests.core.training.forked_training"
IMPORTED = (
    "deepspeed.ops.op_builder",
    "pandas",
    "pyarrow.compute",
    "transformers.models.qwen3.modeling_qwen3",
    "oapl_core.training.model.adapters",
    "oapl_core.training.mismatch",
    "oapl_core.training.steps",
    "oapl_core.training.train",
)


class Forked:
    """A training that has begun, with what tests use of ``subprocess.Popen``."""

    def __init__(self, run: Run | None, number: int = 0, module: Sequence[str] = ()) -> None:
        """Begin round ``number`` as ``python -m oapl_core.training.train`` does; one at a time.

        Without a run, begin as ``python -m`` does with ``module``, its name and its arguments.
        """
        self._files = [Path(tempfile.mkstemp(prefix="oapl-test-said-")[1]) for _ in range(2)]
        self._server = _server()
        asked = {
            "arguments": [str(run.root), "--round", str(number)] if run else [],
            "module": list(module),
            "files": [str(file) for file in self._files],
            "environment": dict(os.environ),
            "folder": str(Path.cwd()),
        }
        print(json.dumps(asked), file=self._server.stdin, flush=True)
        self.pid = self._read("STARTED")
        self.returncode: int | None = None

    def __enter__(self) -> "Forked":
        """Leaving the context kills what still trains."""
        return self

    def __exit__(self, *_: object) -> None:
        if self.poll() is None:
            self.send_signal(signal.SIGKILL)
            self.communicate()

    def poll(self) -> int | None:
        """Return its exit code, None while it trains."""
        assert self._server.stdout
        if self.returncode is None and select.select([self._server.stdout.fileno()], [], [], 0)[0]:
            self.wait()
        return self.returncode

    def wait(self) -> int:
        """Wait for its exit code."""
        if self.returncode is None:
            self.returncode = self._read("ENDED")
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it was seen to have ended."""
        if self.returncode is None:
            os.kill(self.pid, number)

    def communicate(self) -> tuple[str, str]:
        """Wait for its end; what it printed, and its errors."""
        self.wait()
        said, errors = (file.read_text() for file in self._files)
        for file in self._files:
            file.unlink()
        return said, errors

    def _read(self, word: str) -> int:
        assert self._server.stdout
        try:
            for line in self._server.stdout:  # libraries print, too, while they are imported
                if line.startswith(word):
                    return int(line.split()[1])
        except BaseException:  # of a time limit: an answer that nobody read would be taken for the next one
            self._server.kill()
            _server.cache_clear()
            raise
        raise AssertionError(f"the process that forks has ended; `python -m {MODULE}` says why")


@cache
def _server() -> "subprocess.Popen[str]":
    environment = os.environ | {"DS_ACCELERATOR": "cpu", "TORCHDYNAMO_DISABLE": "1"}
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    server = subprocess.Popen([sys.executable, "-m", MODULE], cwd=ROOT, env=environment, text=True, **pipes)
    atexit.register(_end, server)
    return server


def _end(server: "subprocess.Popen[str]") -> None:
    server.kill()
    server.communicate()


def printed(module: str, *arguments: str) -> str:
    """What ``python -m module arguments`` prints; it must succeed."""
    process = Forked(None, module=(module, *arguments))
    said, errors = process.communicate()
    assert process.returncode == 0, said + errors
    return said


def trained(*words: str) -> str:
    """Train what ``words`` say, one after the other; returns what was printed.

    ``RUN:ROUND``, or ``RUN:ROUND:STEP``, which kills the process (SIGKILL) once the state of that step is on the disk.
    """
    said_by_all = ""
    for word in words:
        folder, number, *killed = word.split(":")
        run = Run.open(Path(folder))
        process, began = Forked(run, int(number)), time.monotonic()
        if killed:
            state = run.checkpoints(int(number)) / "state" / f"epoch_01_step_{int(killed[0]):06d}"
            while not state.exists() and time.monotonic() < began + 60:
                time.sleep(0.001)
            process.send_signal(signal.SIGKILL)
        said, errors = process.communicate()
        assert process.returncode == (-signal.SIGKILL if killed else 0), said + errors
        said_by_all += said
    return said_by_all


def _begin(asked: dict[str, Any]) -> int:
    """Become the process that was asked for, in a fork; returns its exit code."""
    os.environ.clear()
    os.environ.update(asked["environment"])
    os.chdir(asked["folder"])
    tempfile.tempdir = None
    for descriptor, file in enumerate([os.devnull, *asked["files"]]):
        os.dup2(os.open(file, os.O_RDWR), descriptor)
    sys.path[0] = asked["folder"]
    if asked["module"]:
        module, *sys.argv[1:] = asked["module"]
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        return 0
    sys.argv = ["oapl_core/training/train.py", *asked["arguments"]]
    return run_verb(importlib.import_module("oapl_core.training.train").train, has_round=True)


def _main() -> int:
    for module in IMPORTED:  # imported only: a fork of a process that has computed could hang
        importlib.import_module(module)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            return _begin(json.loads(line))
        print(f"STARTED {child}", flush=True)
        print(f"ENDED {os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(_main())
