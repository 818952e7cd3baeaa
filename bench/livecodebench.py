"""LiveCodeBench's own checker, unmodified: the benchmark's other side (``python -m bench.livecodebench DIR``).

DIR is a checkout of https://github.com/LiveCodeBench/LiveCodeBench; nothing of it is part of this repository. The
checker runs in a small process of its own, as its authors run it (a large parent would slow its forks), and that
process outlives the measurements. Reads one JSON line {"samples", "generations", "workers"}, writes one JSON line
{"passed", "seconds"}; seconds are those of ``codegen_metrics`` alone.

It executes programs without isolation: give it only programs of our own.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.bench_programs import Case, as_livecodebench

CHECKER = "lcb_runner/evaluation/compute_code_generation_metrics.py"
HOW_TO_GET_IT = (
    "git clone https://github.com/LiveCodeBench/LiveCodeBench DIR, then set OAPL_LCB=DIR (or --livecodebench DIR); "
    "it needs only numpy and tqdm of this environment"
)


class Checker:
    """The checker's process. Use as a context manager."""

    def __init__(self, checkout: Path) -> None:
        """Raises ValueError when `checkout` is not a checkout of LiveCodeBench."""
        if not (checkout / CHECKER).is_file():
            raise ValueError(f"no LiveCodeBench in {checkout} ({CHECKER} is missing): {HOW_TO_GET_IT}")
        command = [sys.executable, "-m", "bench.livecodebench", str(checkout.resolve())]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> Checker:
        return self

    def __exit__(self, *_: object) -> None:
        """Ends the process."""
        assert self._process.stdin and self._process.stdout
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()

    def judge(self, cases: Sequence[Case], workers: int) -> tuple[list[bool], float]:
        """Whether each case passes all its tests, and the seconds that took."""
        assert self._process.stdin and self._process.stdout
        samples, generations = zip(*map(as_livecodebench, cases), strict=True)
        request = {"samples": samples, "generations": generations, "workers": workers}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the checker's process died; its message stands above"
        reply = json.loads(line)
        return reply["passed"], reply["seconds"]


def _serve(checkout: str) -> None:
    sys.path.insert(0, checkout)
    codegen_metrics = importlib.import_module(CHECKER.removesuffix(".py").replace("/", ".")).codegen_metrics

    channel = os.fdopen(os.dup(1), "w")
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    with open(os.devnull, "w") as null, contextlib.redirect_stderr(null):  # noqa: PTH123
        for line in sys.stdin:
            request: dict[str, Any] = json.loads(line)
            start = time.perf_counter()
            _, results, _ = codegen_metrics(
                request["samples"], request["generations"], num_process_evaluate=request["workers"]
            )
            seconds = time.perf_counter() - start
            passed = [_passed(results[number][0]) for number in range(len(request["samples"]))]
            channel.write(json.dumps({"passed": passed, "seconds": seconds}) + "\n")
            channel.flush()


def _passed(tests: list[Any]) -> bool:
    """As compute_metrics_from_results counts: every test's result is greater than 0."""
    return all(bool(result > 0) for result in tests)


if __name__ == "__main__":
    _serve(sys.argv[1])
