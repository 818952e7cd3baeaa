"""A worker process that calls a person's own reward function; started by exec, fed by ``function_pool.py``.

The code is the user's own and trusted as such; it only must not take the stage with it. It cannot reach the channel:
standard input and output are others by then, and its prints go to the stage's log. It may not start processes, and has
a bound on its memory. Time is bounded from outside.

A request is the length and the pickle of {"problems": [...], "rows": [(problem's place, text, verdict), ...]}. A reply
is one JSON line for each row, written as soon as it is known: {"value", "columns"} or {"error"}.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import pickle
import resource
import struct
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from oapl_core.storable import lenient_output

_STARTS_PROCESSES = frozenset({"os.fork", "os.forkpty", "os.posix_spawn", "os.system", "os.exec", "subprocess.Popen"})
_MIB = 2**20


class _Wrong(Exception):
    """Error of a function whose return value is no reward."""


def main() -> None:
    """Serve requests until the channel ends. Arguments: function, its columns as JSON, MiB."""
    name, columns, memory_mb = sys.argv[2], frozenset(json.loads(sys.argv[3])), int(sys.argv[4])
    # before anything of the person's runs: its input and output are not the channel's
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb", buffering=0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    lenient_output()  # a response that is printed may have half of an emoji
    # a call that never returns would outlive a stage that is killed
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    try:
        module, _, function = name.partition(":")
        found = getattr(importlib.import_module(module), function)
    except BaseException as error:  # sys.exit() in a module, too
        _write(replies, {"error": _said(error)})
        return
    _confine(memory_mb)
    _write(replies, {"ready": True})
    while size := requests.read(4):
        request = pickle.loads(requests.read(struct.unpack("<I", size)[0]))
        for place, text, verdict in request["rows"]:
            _write(replies, _reply(found, columns, request["problems"][place], text, verdict))


def _end_with(parent: int) -> None:
    """End when the stage does, also in the middle of a call."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


def _confine(memory_mb: int) -> None:
    """Allow no more address space than now and ``memory_mb``; no new process. Its imports are done by now."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    # added to what is there: importing torch takes gigabytes of address space that are never used
    limit = pages * resource.getpagesize() + memory_mb * _MIB
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    # a fork would answer twice, and what it starts would outlive the stage's limits
    sys.addaudithook(_refuse_processes)


def _refuse_processes(event: str, _arguments: tuple[Any, ...]) -> None:
    if event in _STARTS_PROCESSES:
        raise PermissionError("a reward function may not start processes")


def _reply(
    function: Callable[..., Any], columns: frozenset[str], problem: Any, text: str, verdict: Any
) -> dict[str, Any]:
    try:
        found = function(problem, text, verdict)
        # a misspelt name must not become a column of nulls
        value, named = found if isinstance(found, tuple) and len(found) == 2 else (found, {})
        if unknown := sorted(set(named) - columns):
            raise _Wrong(f"returned {unknown[0]!r}, which reward.columns does not name")
        return {"value": _finite(value, "it"), "columns": {k: _finite(v, k) for k, v in named.items()}}
    except _Wrong as error:
        return {"error": str(error)}
    except BaseException as error:  # SystemExit is no Exception
        return {"error": f"raised {_said(error)}{_place(error, function)}"}


def _finite(value: Any, what: str) -> float:
    try:
        if isinstance(value, str | bytes | bytearray):  # float would read digits that the model wrote
            raise TypeError
        number = float(value)
    except (TypeError, ValueError):
        raise _Wrong(f"returned {value!r:.80} for {what}, not a number") from None
    # NaN would poison the value of its whole group
    if not math.isfinite(number):
        raise _Wrong(f"returned {number} for {what}")
    return number


def _said(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


def _place(error: BaseException, function: Callable[..., Any]) -> str:
    """Return the innermost line of the person's own file; nothing where it is none."""
    own = getattr(getattr(function, "__code__", None), "co_filename", "")
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == own]
    return f" ({Path(own).name}, line {lines[-1]})" if lines else ""


def _write(replies: BinaryIO | Any, reply: dict[str, Any]) -> None:
    replies.write(json.dumps(reply).encode() + b"\n")
