"""Calls a person's own reward function in worker processes."""

from __future__ import annotations

import json
import pickle
import struct
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from oapl_core.plugins.own_function import IMPORT_SECONDS, search_path
from oapl_core.settings.reward import RewardConfig
from oapl_core.verdicts.workers.worker_pool import Fault, WorkerPool


@dataclass(frozen=True)
class FunctionCall:
    """Arguments that the function is given."""

    problem: Mapping[str, Any]
    text: str
    verdict: Mapping[str, Any]


@dataclass(frozen=True)
class Returned:
    """Result of the function: a number and its columns, or what went wrong."""

    value: float | None = None
    columns: Mapping[str, float] = field(default_factory=dict)
    error: str | None = None


class FunctionPool(WorkerPool):
    """Up to ``workers`` processes that call the function, started when first needed. Thread-safe."""

    start_s = IMPORT_SECONDS

    def __init__(self, config: RewardConfig, workers: int) -> None:
        """Set up, but start nothing yet."""
        assert config.place
        arguments = (config.place, json.dumps(config.columns), str(config.memory_mb))
        # its standard error goes to the stage's log: a person finds there what the function prints
        module = "oapl_core.verdicts.workers.function_worker"
        super().__init__(workers, module, search_path(), *arguments, stderr=subprocess.PIPE)
        self.wall_s = config.time_limit_s

    def call(self, calls: Sequence[FunctionCall]) -> list[Returned]:
        """Return the function's results, in order; a call that ends or hangs its process costs only its own row."""
        return [self._returned(reply) for reply in self.ask(len(calls), lambda n: _request(calls[n:]))]

    def _returned(self, reply: dict[str, Any] | Fault) -> Returned:
        if isinstance(reply, dict):
            return Returned(**reply)
        if reply.kind == "slow":
            return Returned(error=f"took more than {self.wall_s:g} s")
        if reply.kind == "not started":
            return Returned(error=f"cannot be imported ({reply})")
        return Returned(error=f"ended its process, which {reply}")


def _request(calls: Sequence[FunctionCall]) -> bytes:
    """Return the calls in the worker's form (function_worker.py)."""
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
    return struct.pack("<I", len(request)) + request
