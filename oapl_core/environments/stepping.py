"""Steps of environments in threads: each has a bound on its wall time, and whatever it raises is a fact about it.

Threads are daemons, since an environment may hang for ever: the stage must be able to end without it.
"""

import pickle
import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from oapl_core.environments.protocol import Action, Environment, Observation
from oapl_core.environments.syntax import calls
from oapl_core.errors import StageFailed
from oapl_core.settings.environment import EnvironmentConfig


@dataclass
class Playing:
    """One trajectory's environment."""

    problem: Mapping[str, Any]
    seed: int
    environment: Environment | None = None
    """None: not begun, or still pickled."""
    kept: bytes | None = None
    """As it was pickled after its last step."""


@dataclass(frozen=True)
class Stepped:
    """What a step gave."""

    key: str
    observation: Observation | None
    """None: the environment failed."""
    seconds: float
    reason: str = ""
    """Why it failed."""
    hangs: bool = False
    """It still runs; its thread closes the environment when it ends."""


class Steps:
    """Threads that run steps, started when they are needed. Use as a context manager."""

    def __init__(self, config: EnvironmentConfig, make: Callable[[], Environment]) -> None:
        """``make``: of ``making.maker``."""
        self._config, self._make = config, make
        self._waiting: queue.SimpleQueue[tuple[str, Playing, str, int] | None] = queue.SimpleQueue()
        self._ended: queue.SimpleQueue[Stepped] = queue.SimpleQueue()
        self._threads = 0
        self._begun: dict[str, float] = {}
        """When each running step began; guarded by ``_lock``, as which thread may still answer."""
        self._lock = threading.Lock()
        self._hanging, self._running = 0, 0
        self._is_closed = False

    def submit(self, key: str, playing: Playing, text: str, turn: int) -> None:
        """Have ``playing`` answer what the model said in a turn."""
        self._running += 1
        if self._threads < min(self._running + self._hanging, self._config.workers):
            self._threads += 1
            threading.Thread(target=self._work, name=f"environment {self._threads}", daemon=True).start()
        self._waiting.put((key, playing, text, turn))

    def ended(self, wait_s: float | None = 0.0) -> list[Stepped]:
        """Steps that have ended since; with ``wait_s`` waits so long for the first (None: until there is one).

        Raises:
            StageFailed: every thread hangs.
        """
        found = list[Stepped]()
        deadline = None if wait_s is None else time.monotonic() + wait_s
        while True:
            found += self._overdue()
            while not self._ended.empty():
                found.append(self._ended.get())
            if found or (deadline is not None and time.monotonic() >= deadline):
                self._running -= len(found)
                return found
            # half a second: how late a step that hangs is noticed
            left = 0.5 if deadline is None else min(0.5, deadline - time.monotonic())
            try:
                found.append(self._ended.get(timeout=max(0.0, left)))
            except queue.Empty:
                continue

    def close(self) -> set[str]:
        """Let threads end, and give up what runs or waits; returns the keys of what its thread will close itself."""
        with self._lock:
            self._is_closed = True
            running = set(self._begun)
            self._hanging += len(running)
            self._begun.clear()
        for _ in range(self._threads):
            self._waiting.put(None)
        return running

    def _overdue(self) -> list[Stepped]:
        late, now = list[Stepped](), time.monotonic()
        with self._lock:
            for key, begun in list(self._begun.items()):
                if now - begun > self._config.tool_s:
                    del self._begun[key]
                    self._hanging += 1
                    reason = f"a step took more than {self._config.tool_s:g} s"
                    late.append(Stepped(key, None, now - begun, reason, hangs=True))
        if self._hanging >= self._config.workers:
            raise StageFailed(
                f"environment.function: {self._hanging} steps of {self._config.function} hang, as many as there are "
                "environment.workers; mend it, or raise environment.tool_s, then run again"
            )
        return late

    def _work(self) -> None:
        while job := self._waiting.get():
            key, playing, text, turn = job
            start = time.monotonic()
            with self._lock:
                if self._is_closed:
                    continue
                self._begun[key] = start
            found = self._stepped(key, playing, text, turn, start)
            with self._lock:
                in_time = self._begun.pop(key, None) is not None
                self._hanging -= not in_time
            if in_time:
                self._ended.put(found)
            else:  # it was given up meanwhile, and nobody else may touch what still ran
                ended(playing)

    def _stepped(self, key: str, playing: Playing, text: str, turn: int, start: float) -> Stepped:
        try:
            if playing.environment is None:
                playing.environment = self._begun_or_restored(playing)
            environment = playing.environment
            action = Action(text, calls(text, self._config.syntax, environment.tools()), turn)
            observation = environment.step(action)
            playing.kept = None if observation.is_done else pickle.dumps(environment)
            return Stepped(key, observation, time.monotonic() - start)
        except Exception as error:  # a person's own code, or a tool's machinery: no fault of the model's
            reason = f"{type(error).__name__}: {error}"
            return Stepped(key, None, time.monotonic() - start, " ".join(reason.split())[:300])

    def _begun_or_restored(self, playing: Playing) -> Environment:
        if playing.kept is not None:
            restored: Environment = pickle.loads(playing.kept)
            return restored
        environment = self._make()
        environment.reset(playing.problem, playing.seed)
        return environment


def ended(playing: Playing) -> str:
    """Close an environment whose trajectory is over; why that failed, if it did."""
    environment, playing.environment = playing.environment, None
    try:
        if environment is not None:
            environment.close()
    except Exception as error:  # the trajectory is whole: what was left open costs no row
        return f"{type(error).__name__}: {error}"
    return ""
