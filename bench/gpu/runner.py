"""Runs the card: each measurement in a worker's process, one line each in the raw file, within bounds of time."""

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any

from bench.gpu import raw_file
from bench.gpu.measurement import PARTS, Measurement
from oapl_core.settings.training import TrainingConfig

ROOT = Path(__file__).resolve().parents[2]
LOG = "card.log"
PEAKS = "peaks products"
"""Key of the line that has the measured products."""
SHOWN = ("tokens_per_s", "tflops", "share_of_sheet", "peak_gib", "ms", "ratio", "seconds")
"""Figures of a line that the progress shows, those that are there."""


def say_at_once(text: str) -> None:
    """Also into a pipe."""
    print(text, flush=True)


def of_python() -> dict[str, str]:
    """Environment of a worker: imports of this checkout, then the caller's; a crash leaves its place in the log."""
    given = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": os.pathsep.join([str(ROOT), *([given] if given else [])]), "PYTHONFAULTHANDLER": "1"}


class Worker:
    """A process that measures one thing after another."""

    def __init__(self, log: Path, environment: Mapping[str, str]) -> None:
        self._answers, own = os.pipe()
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "bench.gpu.worker", str(own)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                pass_fds=[own],
                start_new_session=True,
                cwd=ROOT,
                env={**os.environ, **of_python(), **environment},
            )
        os.close(own)
        self._read = b""

    def measure(self, measurement: Measurement, folder: Path, bound_s: float) -> dict[str, Any]:
        """Its result, or a line that says why there is none."""
        asked = {"part": measurement.part, "options": dict(measurement.options), "folder": str(folder)}
        assert self._process.stdin
        with suppress(BrokenPipeError):  # it has ended: the answer says so
            self._process.stdin.write(json.dumps(asked).encode() + b"\n")
            self._process.stdin.flush()
        until = time.monotonic() + bound_s
        while b"\n" not in self._read:
            if not select.select([self._answers], [], [], max(0.0, until - time.monotonic()))[0]:
                return {"error": f"took longer than {bound_s:.0f} s", "late": True}
            part = os.read(self._answers, 65536)
            if not part:
                return {"error": f"its process ended with {self._process.wait()}; see the log"}
            self._read += part
        line, _, self._read = self._read.partition(b"\n")
        found: dict[str, Any] = json.loads(line)
        return found

    def end(self) -> None:
        """With every process that it started."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        assert self._process.stdin
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        os.close(self._answers)


def unknown_settings(measurement: Measurement) -> list[str]:
    """Settings of a variant that this version of the project does not have."""
    return [name for name in measurement.options.get("training", {}) if name not in TrainingConfig.model_fields]


def run(
    plan: Sequence[Measurement],
    path: Path,
    folder: Path,
    minutes: float,
    again: bool = False,
    say: Callable[[str], None] = say_at_once,
    parts: Mapping[str, float] = PARTS,
) -> int:
    """Measure what ``path`` does not hold yet; ``again``: also what failed. Returns how many were not reached."""
    known = raw_file.read(path)
    todo = [m for m in plan if m.key not in known or (again and "error" in known[m.key])]
    say(f"{len(plan) - len(todo)} of {len(plan)} measured before; at most {minutes:g} min")
    say(f"lines go to {path}, what libraries print to {folder / LOG}")
    end, used, skipped, done = time.monotonic() + 60 * minutes, defaultdict[str, float](float), 0, len(plan) - len(todo)
    folder.mkdir(parents=True, exist_ok=True)
    with one_worker(folder / LOG) as worker:
        for number, measurement in enumerate(todo):
            began = time.monotonic()
            left = min(parts[measurement.part] - used[measurement.part], end - began)
            if left < 1:
                skipped += 1
                continue
            row = {"key": measurement.key, "part": measurement.part, "at": datetime.now(UTC).isoformat("T", "seconds")}
            if unknown := unknown_settings(measurement):
                found: dict[str, Any] = {"error": f"unknown setting: training.{', training.'.join(unknown)}"}
            else:
                found = worker.of(measurement).measure(measurement, folder, min(measurement.bound_s, left))
                if "error" in found:
                    worker.end()
                if found.get("late") and left < measurement.bound_s:
                    # its own bound was not over, so nobody knows how long it takes
                    used[measurement.part] = parts[measurement.part]
                    skipped += 1
                    continue
            found |= share_of_product(found, raw_file.read(path)) | {"process_s": round(time.monotonic() - began, 2)}
            raw_file.append(path, {**row, "options": dict(measurement.options), **found})
            used[measurement.part] += time.monotonic() - began
            done += 1
            rest = _seconds_left(todo[number + 1 :], used, end, parts)
            say(f"{done}/{len(plan)} {measurement.key}: {_shown(found)}; at most {rest / 60:.0f} min left")
    if skipped:
        say(f"{skipped} were not reached in their part's time; the same command measures them")
    return skipped


def share_of_product(found: Mapping[str, Any], known: Mapping[str, dict[str, Any]]) -> dict[str, float]:
    """Of a line's TFLOP/s in those of the bfloat16 product that the card measured; nothing where either is unknown."""
    product = known.get(PEAKS, {}).get("product_tflops", {}).get("bfloat16")
    return {"share_of_product": round(found["tflops"] / product, 4)} if product and found.get("tflops") else {}


def _seconds_left(
    todo: Sequence[Measurement], used: Mapping[str, float], end: float, parts: Mapping[str, float]
) -> float:
    """An upper bound: of each part what its bound leaves."""
    bounds = defaultdict[str, float](float)
    for measurement in todo:
        bounds[measurement.part] += measurement.bound_s
    rest = sum(min(bound, max(0.0, parts[part] - used.get(part, 0.0))) for part, bound in bounds.items())
    return max(0.0, min(rest, end - time.monotonic()))


def _shown(found: Mapping[str, Any]) -> str:
    if "error" in found:
        return str(found["error"])
    figures = [f"{name} {found[name]:,.4g}" for name in SHOWN if isinstance(found.get(name), int | float)]
    return ", ".join([*figures, f"{found['process_s']:.0f} s"])


class OneWorker:
    """The worker of the measurement that is on; one that needs another process ends it first."""

    def __init__(self, log: Path) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self._log, self._name = log, ""
        self._worker: Worker | None = None

    def of(self, measurement: Measurement) -> Worker:
        name = f"{measurement.part} {measurement.process}"
        if self._worker is None or name != self._name:
            self.end()
            self._name, self._worker = name, Worker(self._log, measurement.environment)
        return self._worker

    def end(self) -> None:
        if self._worker:
            self._worker.end()
            self._worker = None


@contextmanager
def one_worker(log: Path) -> Iterator[OneWorker]:
    """Signals that end this process end the worker, too; after a kill the worker's standard input ends, and so it."""

    def leave(number: int, _frame: FrameType | None) -> None:
        sys.exit(128 + number)

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGINT)}
    worker = OneWorker(log)
    try:
        yield worker
    finally:
        worker.end()
        for number, handler in before.items():
            signal.signal(number, handler)
