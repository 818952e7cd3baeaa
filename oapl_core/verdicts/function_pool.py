"""Calls a person's own reward function in worker processes: bounded from outside, replaced when they die or hang."""

from __future__ import annotations

import json
import pickle
import queue
import select
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from oapl_core.own_function import IMPORT_SECONDS, search_path
from oapl_core.settings.reward import RewardConfig
from oapl_core.verdicts.forwarded_output import ForwardedOutput

_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from oapl_core.verdicts.function_worker import main; main()"
)
_CHUNK_BYTES = 2**16


@dataclass(frozen=True)
class FunctionCall:
    """What the function is given."""

    problem: Mapping[str, Any]
    text: str
    verdict: Mapping[str, Any]


@dataclass(frozen=True)
class Returned:
    """What it gave back: a number and its columns, or what went wrong."""

    value: float | None = None
    columns: Mapping[str, float] = field(default_factory=dict)
    error: str | None = None


class _Slow(Exception):
    """A call used up its time."""


class _FunctionWorker:
    """One worker process."""

    def __init__(self, config: RewardConfig) -> None:
        assert config.function
        arguments = [json.dumps(search_path()), config.function, json.dumps(config.columns), str(config.memory_mb)]
        # its standard error goes to the stage's log: a person finds there what the function prints
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-B", "-c", _BOOT, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
        assert self._process.stderr
        self._printed = ForwardedOutput(self._process.stderr)
        self._read = b""
        self._time_limit_s = config.time_limit_s

    def start(self) -> str | None:
        """Wait for its imports; what went wrong with them. Raises EOFError or _Slow."""
        error: str | None = self._line(IMPORT_SECONDS).get("error")
        return error

    def ask(self, calls: Sequence[FunctionCall]) -> Iterator[Returned]:
        """A reply to each call, as they come. Raises _Slow, EOFError or OSError at the one that it did not survive."""
        places: dict[int, int] = {}
        problems: list[Mapping[str, Any]] = []
        rows = []
        for call in calls:  # the answers to a problem follow each other; its tests travel once
            if id(call.problem) not in places:
                places[id(call.problem)] = len(problems)
                problems.append(call.problem)
            rows.append((places[id(call.problem)], call.text, call.verdict))
        # pickle, since problems have megabytes of tests; replies are JSON, as a foreign process may write anything
        request = pickle.dumps({"problems": problems, "rows": rows}, protocol=5)
        assert self._process.stdin
        self._process.stdin.write(struct.pack("<I", len(request)))
        # a pipe takes less at a time than a request has
        view = memoryview(request)
        while view:
            view = view[self._process.stdin.write(view) :]
        # the time of each call begins when the reply before it is here
        for _ in calls:
            yield Returned(**self._line(self._time_limit_s))

    def _line(self, seconds: float) -> dict[str, Any]:
        deadline, stream = time.monotonic() + seconds, self._process.stdout
        assert stream
        while b"\n" not in self._read:
            if not select.select([stream], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise _Slow
            more = stream.read(_CHUNK_BYTES)
            if not more:
                raise EOFError
            self._read += more
        line, _, self._read = self._read.partition(b"\n")
        reply: dict[str, Any] = json.loads(line)
        return reply

    def ending(self) -> str:
        """In which way it ended by itself, in words."""
        try:
            code = self._process.wait(2.0)
        except subprocess.TimeoutExpired:
            return "closed its channel"
        return f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._printed.close()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream
            with suppress(BrokenPipeError):  # an unsent request dies with its worker
                stream.close()


class FunctionPool:
    """Up to ``workers`` processes that call the function, started when first needed. Thread-safe."""

    def __init__(self, config: RewardConfig, workers: int) -> None:
        """Starts nothing yet."""
        self._config = config
        # last in, first out: a live worker is taken before an empty slot
        self._slots: queue.LifoQueue[_FunctionWorker | None] = queue.LifoQueue()
        for _ in range(workers):
            self._slots.put(None)
        self._started: set[_FunctionWorker] = set()
        self._lock = threading.Lock()

    def close(self) -> None:
        """End every worker."""
        while self._started:
            self._started.pop().close()

    def call(self, calls: Sequence[FunctionCall]) -> list[Returned]:
        """What the function says of each, in order; what ends or hangs its process costs only its own row."""
        found: list[Returned] = []
        deaths = 0
        while len(found) < len(calls):
            with self._slot() as worker:
                try:
                    if isinstance(worker, str):  # why there is none
                        return [*found, *[Returned(error=worker)] * (len(calls) - len(found))]
                    for returned in worker.ask(calls[len(found) :]):
                        found.append(returned)
                        deaths = 0
                except _Slow:  # not tried again: it would take as long
                    self._retire(worker)
                    found.append(Returned(error=f"took more than {self._config.time_limit_s:g} s"))
                    deaths = 0
                except (EOFError, OSError):
                    assert isinstance(worker, _FunctionWorker)
                    ending = worker.ending()
                    self._retire(worker)
                    deaths += 1  # once more in a fresh process: a machine without memory ends those that did nothing
                    if deaths == 2:
                        found.append(Returned(error=f"ended its process, which {ending}"))
                        deaths = 0
        return found

    @contextmanager
    def _slot(self) -> Iterator[_FunctionWorker | str]:
        """A worker that has imported the function, or why there is none."""
        worker = self._slots.get()
        try:
            if worker is None:
                worker = _FunctionWorker(self._config)
                with self._lock:
                    self._started.add(worker)
                try:
                    error = worker.start()
                except _Slow:
                    error = f"cannot be imported (more than {IMPORT_SECONDS:.0f} s)"
                except EOFError:
                    error = f"cannot be imported (its process {worker.ending()})"
                if error:
                    self._retire(worker)
                    yield error
                    return
            yield worker
        finally:
            # a slot that lost its worker gets a fresh one when it is next taken
            self._slots.put(worker if worker in self._started else None)

    def _retire(self, worker: _FunctionWorker | str) -> None:
        assert isinstance(worker, _FunctionWorker)
        with self._lock:
            self._started.discard(worker)
        worker.close()
