"""Trains rounds one after the other, each in a process of its own that shares the imports: ``-m ... RUN:ROUND ...``.

``RUN:ROUND:STEP`` kills the process (SIGKILL) once the state of that step is on the disk; nothing comes after it.
"""

import importlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from oapl_core.run_folder.run import Run
from oapl_core.training.train import train

IMPORTED = (
    "deepspeed.ops.op_builder",
    "pandas",
    "pyarrow.compute",
    "transformers.models.qwen3.modeling_qwen3",
    "oapl_core.training.model.adapters",
    "oapl_core.training.mismatch",
    "oapl_core.training.steps",
)


def trained(*words: str) -> str:
    """Train what ``words`` say; returns what was printed."""
    command = [sys.executable, "-m", "tests.core.training.forked_training", *words]
    # one thread: waiting threads of a tiny model take more time than its mathematics
    environment = os.environ | {"DS_ACCELERATOR": "cpu", "TORCHDYNAMO_DISABLE": "1", "OMP_NUM_THREADS": "1"}
    result = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def _train(run: Run, number: int) -> int:
    child = os.fork()
    if child == 0:
        train(run, number)
        sys.stdout.flush()
        os._exit(0)
    return child


def _main(words: list[str]) -> int:
    for module in IMPORTED:  # imported only: a fork of a process that has computed could hang
        importlib.import_module(module)
    for word in words:
        folder, number, *killed = word.split(":")
        run = Run.open(Path(folder))
        child, began = _train(run, int(number)), time.monotonic()
        if killed:
            state = run.checkpoints(int(number)) / "state" / f"epoch_01_step_{int(killed[0]):06d}"
            while not state.exists() and time.monotonic() < began + 60:
                time.sleep(0.001)
            os.kill(child, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code != (-signal.SIGKILL if killed else 0):
            return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(_main(sys.argv[1:]))
