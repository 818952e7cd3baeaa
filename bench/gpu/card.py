"""The card: every measurement of a half hour on one GPU, each in a process of its own, one JSON line each.

A line is written as soon as its part ends, so a card that is stopped goes on with the parts that have none. A part has
seconds of its own; one that fails or runs over them is a line with its error, and the next begins. A mend that is no
setting of this tree is a line that says so.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from oapl_core.progress import Progress
from oapl_core.settings.training import TrainingConfig

ROOT = Path(__file__).resolve().parents[2]
PLAIN = {"kernels": "off", "attention": "torch", "recompute": "all", "compile": False}
"""The trainer without a mend that is a setting."""
MENDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "liger": {"kernels": "liger"},
    "flash-3": {"attention": "flash-3"},
    "flash-4": {"attention": "flash-4"},
    "attention kept": {"recompute": "attention"},
    "every second layer kept": {"recompute": 2},
    "all kept": {"recompute": "none"},
    "compiled": {"recompute": "none", "compile": True},
    "together": {"kernels": "auto", "attention": "auto", "recompute": "auto"},
}
"""Settings of ``[training]``, each beside `PLAIN`."""
_SHORT, _LONG = (1024, 64), (10240, 8)
"""Tokens of an answer, and sequences of a step."""
_BUDGETS = (16384, 65536)
"""Tokens of a micro-batch, beside the 32,768 of the other steps."""
_LAST_LINES = 3


@dataclass(frozen=True)
class Part:
    """One measurement."""

    measure: str
    """Which: a name that ``python -m bench.gpu one`` knows."""
    given: Mapping[str, Any] = field(default_factory=dict)
    """Its arguments."""
    seconds: float = 60.0
    """It is ended after so many."""

    @property
    def key(self) -> str:
        """What its line is found by."""
        return " ".join([self.measure, *(f"{name}={value}" for name, value in self.given.items())])


def parts() -> Iterator[Part]:
    """The card of a GPU, what says most first."""
    yield Part("peaks")
    yield Part("dispatch")
    for zero in (1, 3):
        yield Part("dispatch_zero", {"zero": zero})
    for size in ("0.6B", "4B"):
        yield Part("profile", {"size": size, "length": 1024, "sequences": 32, "mend": "plain"}, 90)
        yield Part("profile", {"size": size, "length": 1024, "sequences": 32, "mend": "together"}, 120)
    for size in ("0.6B", "4B"):
        for mend in MENDS:
            yield _step(size, _SHORT, mend, 32768)
    for size in ("0.6B", "1.7B", "4B"):
        for mend in ("plain", "together"):
            yield _step(size, _LONG, mend, 32768)
    for budget in _BUDGETS:
        yield _step("0.6B", _SHORT, "together", budget)
    for size in ("0.6B", "4B"):
        yield Part("peer", {"size": size, "length": 1024, "sequences": 64, "budget": 16384, "recompute": True}, 90)
    for zero in (1, 3):
        yield Part("step", {**_step("0.6B", _SHORT, "plain", 16384).given, "zero": zero}, 90)
    yield Part("output", {"size": "4B"}, 60)
    for at_once in (128, 256, 1024):
        yield Part("stage", {"size": "0.6B", "at_once": at_once, "tokens": 256}, 240)
    yield Part("starts", {"size": "0.6B"}, 400)
    for dtype in ("auto", "fp8"):
        yield Part("cache", {"size": "4B", "at_once": 256, "length": 2048, "kv_cache_dtype": dtype}, 200)


def tiny_parts() -> Iterator[Part]:
    """The same measurements of a tiny model, on a CPU: a card that says whether the command works."""
    work: dict[str, Any] = {"size": "tiny", "length": 24, "sequences": 16}
    yield Part("peaks")
    yield Part("dispatch", {"layers": 2})
    for zero in (1, 3):
        yield Part("dispatch_zero", {"zero": zero, "layers": 2}, 120)
    yield Part("profile", {**work, "mend": "plain"}, 120)
    for mend in ("plain", "attention kept", "every second layer kept", "all kept", "together", "liger"):
        yield Part("step", {**work, "mend": mend, "budget": 256, "zero": 1}, 120)
    yield Part("peer", {**work, "budget": 256, "recompute": True}, 120)
    yield Part("output", {"size": "tiny"}, 60)
    yield Part("stage", {"size": "tiny", "at_once": 16, "tokens": 8}, 240)
    yield Part("starts", {"size": "tiny"}, 300)
    yield Part("cache", {"size": "tiny", "at_once": 8, "length": 16, "kv_cache_dtype": "auto"}, 120)


def _step(size: str, work: tuple[int, int], mend: str, budget: int) -> Part:
    given = {"size": size, "length": work[0], "sequences": work[1], "mend": mend, "budget": budget, "zero": 1}
    return Part("step", given, 120)


def settings_of(mend: str) -> dict[str, Any] | None:
    """Settings of ``[training]`` with a mend; None where this tree has no such setting."""
    wanted = PLAIN | MENDS[mend]
    return wanted if set(MENDS[mend]) <= TrainingConfig.model_fields.keys() else None


def fill(
    to: Path,
    chosen: list[Part],
    minutes: float,
    folder: Path,
    again: bool = False,
    about: Mapping[str, Any] | None = None,
) -> int:
    """Measure the parts that have no line yet, until the minutes are over; returns how many parts have none still.

    Args:
        to: JSON lines, one a part.
        chosen: in the order in which they are measured.
        minutes: for all of them; a part is not begun that could run over them.
        folder: for models and runs.
        again: measure those again whose line is an error.
        about: what every line has: the device, versions.
    """
    done = {line["key"]: line for line in lines_of(to)}
    missing = [part for part in chosen if part.key not in done or (again and "error" in done[part.key])]
    until, left = time.monotonic() + 60 * minutes, len(missing)
    with Progress("card", len(chosen), "parts", every_s=0.0, tell=_tell) as progress:
        progress.skip(len(chosen) - len(missing))
        for part in missing:
            if time.monotonic() + min(part.seconds, 30.0) > until:
                break
            line = measured(part, folder, min(part.seconds, until - time.monotonic()))
            with to.open("a") as file:
                file.write(json.dumps({"key": part.key, **(about or {}), **line}) + "\n")
                file.flush()
                os.fsync(file.fileno())
            left -= 1
            progress.advance(note=f"{part.key}: {line.get('error', 'done')}"[:160])
    return left


def lines_of(path: Path) -> list[dict[str, Any]]:
    """The last line of each key; a line that a kill cut is none."""
    found: dict[str, dict[str, Any]] = {}
    for text in path.read_text().splitlines() if path.is_file() else []:
        with suppress(json.JSONDecodeError):
            line = json.loads(text)
            found[line["key"]] = line
    return list(found.values())


def measured(part: Part, folder: Path, seconds: float) -> dict[str, Any]:
    """What a part found, or its error, with the seconds that its process took."""
    if (mend := part.given.get("mend")) and settings_of(mend) is None:
        return {"error": f"no such setting here: {', '.join(MENDS[mend])}"}
    command = [sys.executable, "-m", "bench.gpu", "one", part.measure, json.dumps(part.given), "--folder", str(folder)]
    began = time.monotonic()
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        out, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        # its engines too: they are in the session that it leads
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return {"error": f"ran over its {seconds:.0f} s", "part_s": round(time.monotonic() - began, 1)}
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    taken = {"part_s": round(time.monotonic() - began, 1)}
    said = [line for line in out.splitlines() if line.strip()]
    if process.returncode or not said:
        return {"error": " | ".join(said[-_LAST_LINES:])[-600:] or f"exit code {process.returncode}", **taken}
    return {**json.loads(said[-1]), **taken}


def _tell(line: str) -> None:
    print(line, flush=True)
