"""Judges pairs of maths answers in worker processes; remembers pairs, and counts what befell them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from oapl_core.verdicts.workers.worker_pool import WorkerPool

_CODE_ROOT = str(Path(__file__).resolve().parents[3])
_KNOWN_PAIRS = 50_000
"""Judged pairs that are remembered: a model that is still learning repeats itself, and a wrong pair costs 10 ms."""


class MathsWorkerDied(Exception):
    """No judgement can be made: two workers in a row were killed from outside, none can start, or one got no CPU."""


class MathsPool(WorkerPool):
    """Up to `workers` worker processes, started when first needed. Thread-safe."""

    most_requests = 2000
    """Requests to one worker at most, as sympy's caches grow."""

    def __init__(self, workers: int, cpu_s: float = 4.0) -> None:
        """Take `cpu_s`, the seconds that one pair may cost before it counts as unequal."""
        paths = [_CODE_ROOT, *(p for p in sys.path if p)]
        nothing = {"stderr": subprocess.DEVNULL, "cwd": "/", "env": {"LANG": "C.UTF-8"}}
        super().__init__(workers, "oapl_core.verdicts.workers.maths_worker", paths, **nothing)
        # Elapsed time alone is no judgement: it ends a wait for a worker that is stopped, swapped out or throttled.
        self.cpu_s, self.wall_s = cpu_s, 15 * cpu_s
        self._known: dict[tuple[str, str, str], bool] = {}
        self.too_slow = 0
        """Pairs that were called unequal because they used up their time."""
        self.broken = 0
        """Pairs that were called unequal because a library raised, or because two workers died of them."""
        self.echoes = 0
        """Equal answers that were called unequal because they only repeat the question."""

    def equal(self, gold: str, answer: str, statement: str = "") -> bool:
        """Tell whether `answer` means the same as `gold`. Identical text does; a pair that takes too long does not.

        With the problem's `statement`, an answer that only repeats a formula of it does not either (maths/echo.py).

        Raises:
            MathsWorkerDied: two fresh workers were killed, none can start, or one got no CPU.
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
        """Ask a worker for its word on a pair, a dict as oapl_core/maths has it. Raises MathsWorkerDied."""
        return self._asked({"gold": gold, "answer": answer, "statement": statement})

    def matched(self, pattern: str, text: str) -> str | None:
        """Return the match of `answer_rules.matched`. Raises MathsWorkerDied, and TimeoutError if it takes too long."""
        reply = self._asked({"pattern": pattern, "text": text})
        if "found" not in reply:
            raise TimeoutError(f"the regular expression took more than {self.cpu_s:g} s on one answer")
        found: str | None = reply["found"]
        return found

    def _asked(self, request: dict[str, str]) -> dict[str, Any]:
        line = json.dumps(request).encode() + b"\n"
        (reply,) = self.ask(1, lambda _: line)
        if isinstance(reply, dict):
            return self._counted(reply, broken=reply["error"] is True, echoes=reply["echo"] is True)
        if reply.kind == "slow":
            return self._counted({"equal": False, "parsed": False, "too_slow": True}, too_slow=True)
        if reply.kind == "stalled":
            raise MathsWorkerDied(f"a maths worker got no CPU: less than {self.cpu_s:g} s of it in {self.wall_s:g} s")
        if reply.kind == "ended":
            return self._counted({"equal": False, "parsed": False, "error": True}, broken=True)
        raise MathsWorkerDied("two maths workers in a row were killed or did not start; is there enough memory?")

    def _counted(self, reply: dict[str, Any], **happened: bool) -> dict[str, Any]:
        with self._lock:
            for counter, did in happened.items():
                setattr(self, counter, getattr(self, counter) + did)
        return reply
