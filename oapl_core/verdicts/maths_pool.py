"""Persistent math-verify workers: bounded from outside, replaced when they die, hang or have served long enough."""

from __future__ import annotations

import json
import queue
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from oapl_core.sandbox import linux

_CODE_ROOT = str(Path(__file__).resolve().parents[2])
_BOOT = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from oapl_core.verdicts.maths import main; main()"
_START_SECONDS = 60.0
_END_SECONDS = 2.0
"""How long a worker that closed its channel may take to end, so that its exit says who ended it."""
_REQUESTS_PER_WORKER = 2000
"""sympy's caches grow; a worker is replaced after so many answers."""
_KNOWN_PAIRS = 50_000
"""Judged pairs that are remembered: a model that is still learning repeats itself, and a wrong pair costs 10 ms."""


class MathsWorkerDied(Exception):
    """Two workers in a row were killed from outside, or could not start: no judgement can be made."""


class _Broken(Exception):
    """A worker that had started ended by itself while it judged a pair."""


class _TooSlow(Exception):
    """The pair used up its time."""


class _Worker:
    """One worker process; started by exec."""

    def __init__(self) -> None:
        paths = [_CODE_ROOT, *(p for p in sys.path if p)]
        self.served = 0
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-B", "-c", _BOOT, json.dumps(paths)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
            env={"LANG": "C.UTF-8"},
        )
        self._ready = False

    @property
    def pid(self) -> int:
        return self._process.pid

    def judge(self, request: dict[str, str], cpu_s: float) -> dict[str, Any]:
        """One pair. Raises _TooSlow, _Broken, or EOFError / OSError if the process was killed or did not start."""
        if not self._ready:  # importing math-verify takes a second, which is no part of a pair's time
            self._read(_START_SECONDS, _START_SECONDS)
            self._ready = True
        assert self._process.stdin
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
            self.served += 1
            return self._read(cpu_s, 5 * cpu_s)  # elapsed time bounds what waits without computing
        except (EOFError, OSError) as error:
            if self._ended_by_itself():
                raise _Broken from error
            raise

    def _ended_by_itself(self) -> bool:
        """SIGKILL comes from outside (the kernel without memory, a person); all else is what the pair did."""
        try:
            return self._process.wait(_END_SECONDS) != -signal.SIGKILL
        except subprocess.TimeoutExpired:
            return False

    def _read(self, cpu_s: float, wall_s: float) -> dict[str, Any]:
        """The next reply, within CPU time (counted by the kernel) and elapsed time."""
        stream = self._process.stdout
        assert stream
        start, cpu_before = time.monotonic(), linux.cpu_seconds(self._process.pid)
        while not select.select([stream], [], [], 0.1)[0]:
            if linux.cpu_seconds(self._process.pid) - cpu_before > cpu_s or time.monotonic() - start > wall_s:
                raise _TooSlow
        line = stream.readline()
        if not line:
            raise EOFError("the maths worker died")
        reply: dict[str, Any] = json.loads(line)
        return reply

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream
            try:
                stream.close()
            except BrokenPipeError:
                continue  # an unsent request dies with its worker


class MathsPool:
    """Up to `workers` worker processes, started when first needed. Thread-safe."""

    def __init__(self, workers: int, cpu_s: float = 4.0) -> None:
        """`cpu_s`: what one pair may cost before it counts as unequal."""
        self._cpu_s = cpu_s
        # Last in, first out: a live worker is taken before an empty slot, and few answers start few workers.
        self._slots: queue.LifoQueue[_Worker | None] = queue.LifoQueue()
        for _ in range(workers):
            self._slots.put(None)
        self._started: set[_Worker] = set()
        self._lock = threading.Lock()
        self._known: dict[tuple[str, str, str], bool] = {}
        self.too_slow = 0
        """Pairs that were called unequal because they used up their time."""
        self.broken = 0
        """Pairs that were called unequal because a library raised, or because two workers died of them."""
        self.echoes = 0
        """Equal answers that were called unequal because they only repeat the question."""
        self.deaths = 0
        """Workers that died by themselves or were killed by others."""

    @property
    def pids(self) -> list[int]:
        """Process ids of the live workers."""
        return [worker.pid for worker in self._started]

    def close(self) -> None:
        """Ends every worker."""
        while self._started:
            self._started.pop().close()

    def equal(self, gold: str, answer: str, statement: str = "") -> bool:
        """Whether `answer` means the same as `gold`. Identical text does; a pair that takes too long does not.

        With the problem's `statement`, an answer that only repeats a formula of it does not either (maths_echo.py).

        Raises:
            MathsWorkerDied: two fresh workers were killed, or none can start.
        """
        if gold.strip() == answer.strip():
            return True
        pair = (gold, answer, statement)
        known = self._known.get(pair)  # one look-up: another thread may clear it
        if known is not None:
            return known
        reply = self.judge(*pair)
        equal = reply["equal"] is True or reply.get("same") is True
        if "too_slow" not in reply:  # on a less loaded machine it may be fast enough
            if len(self._known) >= _KNOWN_PAIRS:
                self._known.clear()
            self._known[pair] = equal
        return equal

    def judge(self, gold: str, answer: str, statement: str = "") -> dict[str, Any]:
        """The workers' own word on a pair: {"equal": bool, "parsed": bool, ...} (maths.py). Raises MathsWorkerDied."""
        return self._asked({"gold": gold, "answer": answer, "statement": statement})

    def matched(self, pattern: str, text: str) -> str | None:
        """What `extraction.matched` finds. Raises MathsWorkerDied, and TimeoutError if it takes too long."""
        reply = self._asked({"pattern": pattern, "text": text})
        if "found" not in reply:
            raise TimeoutError(f"the regular expression took more than {self._cpu_s:g} s on one answer")
        found: str | None = reply["found"]
        return found

    def _asked(self, request: dict[str, str]) -> dict[str, Any]:
        deaths = list[bool]()
        # A second worker tells an answer that ends workers from a machine that does.
        while len(deaths) < 2:
            with self._slot() as worker:
                try:
                    reply = worker.judge(request, self._cpu_s)
                    return self._counted(reply, broken=reply["error"] is True, echoes=reply["echo"] is True)
                except _TooSlow:
                    self._retire(worker)
                    return self._counted({"equal": False, "parsed": False, "too_slow": True}, too_slow=True)
                except (_Broken, EOFError, OSError) as error:
                    self._retire(worker)
                    deaths.append(isinstance(error, _Broken))
                    self._counted({}, deaths=True)
        if all(deaths):
            return self._counted({"equal": False, "parsed": False, "error": True}, broken=True)
        raise MathsWorkerDied("two maths workers in a row were killed or did not start; is there enough memory?")

    def _counted(self, reply: dict[str, Any], **happened: bool) -> dict[str, Any]:
        with self._lock:
            for counter, did in happened.items():
                setattr(self, counter, getattr(self, counter) + did)
        return reply

    @contextmanager
    def _slot(self) -> Iterator[_Worker]:
        worker = self._slots.get()
        try:
            if worker is None:
                worker = _Worker()
                with self._lock:
                    self._started.add(worker)
            yield worker
        finally:
            if worker is not None and worker.served >= _REQUESTS_PER_WORKER:
                self._retire(worker)
            self._slots.put(worker if worker in self._started else None)

    def _retire(self, worker: _Worker) -> None:
        with self._lock:
            self._started.discard(worker)
        worker.close()
