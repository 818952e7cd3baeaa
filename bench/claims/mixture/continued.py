"""An arm of Algorithm 1 that a killed command continues, with the numbers of one that was never interrupted.

`Lagged` (algorithm_1.py) keeps all in memory. `Continued` saves weights, moments, the sampler's weights and what was
measured after every chunk of steps, and begins from there.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from bench.claims.algorithm_1 import Arm, Lagged
from bench.claims.machine import Machine
from oapl_core.errors import DataError

CHUNK = 10
"""Most optimiser steps between two saves."""


class Paused(Exception):
    """Time is up; what was trained is saved."""


class Chained:
    """A hash that can be stored: of the hash so far and what follows."""

    def __init__(self) -> None:
        self.so_far = ""

    def update(self, data: bytes) -> None:
        """Add what follows."""
        self.so_far = hashlib.sha256(self.so_far.encode() + data).hexdigest()

    def hexdigest(self) -> str:
        """The hash so far."""
        return self.so_far


class Continued(Lagged):
    """The state of an arm that makes one pass over its rollouts."""

    def __init__(
        self,
        arm: Arm,
        machine: Machine,
        folder: Path,
        kept: Path,
        until: float = float("inf"),
        chunk: int | None = None,
    ) -> None:
        """Begin where ``kept`` ends; ``until``: time.monotonic() after which no chunk begins."""
        assert arm.epochs == 1 and arm.engine_copy is None, "what an interval has left is told by its steps"
        super().__init__(arm, machine, folder)
        self._rollouts: Any = Chained()
        self.kept, self.until, self.chunk = kept, until, chunk or CHUNK
        self._begun: tuple[int, int] | None = None
        """Step at which the interval in hand began, and step of its sampler's weights."""
        self.seconds = 0.0
        self._saved = 0
        """Step of the last save."""
        if kept.exists():
            self._load(torch.load(kept, map_location=self.engine.device, weights_only=True))

    def run(self, say: Callable[[str], None]) -> None:
        """Every step that is missing.

        Raises:
            Paused: time is up.
        """
        if not self.evaluations:
            self.evaluate()
        while self.step < self.arm.steps:
            self._interval(min(self.arm.interval, self.arm.steps - self.step))
            last = self.evaluations[-1]
            say(f"step {self.step}/{self.arm.steps} | right {last['right_share']:.3f} at step {last['step']}")

    def _interval(self, steps: int) -> None:
        at = max(0, self.step - self.arm.offset)
        self._begun = first, at = self._begun or (self.step, at)
        folder = self._export(self._snapshots[at]) if at else self.machine.base
        end = min(first + self.arm.interval, self.arm.steps)
        while self.step < end:
            if time.monotonic() > self.until:
                raise Paused
            began, own = time.monotonic(), min(self.chunk, end - self.step)
            self._chunk(folder, self._snapshots[at], own, self.step - at)
            self.seconds += time.monotonic() - began
            if self.step == end:
                self._begun = None
            self._forget({at} if self._begun else set())
            if self.step - self._saved >= self.chunk or self.step == self.arm.steps:
                self._save()

    def _forget(self, needed: set[int]) -> None:
        """Drop weights that nothing samples with any more."""
        newest = self.step - self.arm.offset
        for step in [step for step in self._snapshots if step < newest and step not in needed]:
            del self._snapshots[step]

    def _save(self) -> None:
        state = {
            "arm": self._settings(),
            "step": self.step,
            "samples": self.samples,
            "begun": list(self._begun or ()),
            "rollouts": self._rollouts.so_far,
            # as text: what is read back without trust holds tensors and plain numbers alone
            "told": json.dumps([self.metrics, self.evaluations, self.cpu_s]),
            "seconds": self.seconds,
            "updates": self.engine.updates,
            "weights": self._weights(),
            "snapshots": self._snapshots,
            "optimizer": self.engine.optimizer.state_dict(),
        }
        self.kept.parent.mkdir(parents=True, exist_ok=True)
        draft = self.kept.with_name(f".tmp-{self.kept.name}")
        torch.save(state, draft)
        draft.rename(self.kept)
        self._saved = self.step

    def _settings(self) -> str:
        return json.dumps(self.arm.settings(), sort_keys=True)

    def _load(self, state: dict[str, Any]) -> None:
        if state.get("arm") != self._settings():
            raise DataError(f"{self.kept}: was begun with other settings; remove it to begin anew, or give those again")
        self.step, self.samples, self.seconds = state["step"], state["samples"], state["seconds"]
        self._begun, self._saved = tuple(state["begun"]) or None, self.step
        self._rollouts.so_far = state["rollouts"]
        self.metrics, self.evaluations, self.cpu_s = json.loads(state["told"])
        self._snapshots = state["snapshots"]
        self.stored.model.load_state_dict(state["weights"])
        self.engine.optimizer.load_state_dict(state["optimizer"])
        self.engine.updates = state["updates"]
