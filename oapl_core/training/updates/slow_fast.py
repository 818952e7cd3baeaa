"""Fast steps on one step's answers, the weights put back by a share of the way, and a slow step (SFPO).

Equations and sources: objectives/options/slow_fast.py. The weights from before the fast steps are float32, of what this
rank steps. They take 4 bytes for each weight during a step, divided by ZeRO as the optimiser is. A state has the
entropies that decide when fast steps end.
"""

import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

from oapl_core.files import sha256_of
from oapl_core.objectives import Method
from oapl_core.objectives.options.slow_fast import SlowFast
from oapl_core.training.metrics import Metrics
from oapl_core.training.saving.pieces import WEIGHT
from oapl_core.training.steps import NONE_OLD, LogRatios, Trainer

_FILE = "entropies.json"


@dataclass
class Entropies:
    """Entropies of the last slow steps, and whether one of them has ended the fast steps."""

    values: list[float] = field(default_factory=list)
    has_ended: bool = False

    def take(self, entropy: float, settings: SlowFast) -> None:
        """Add the entropy of a step's answers, nats per token, and judge it against those of the window."""
        self.values = [*self.values, entropy][-settings.window :]
        if settings.stop_at is not None and len(self.values) == settings.window:
            z = (entropy - fmean(self.values)) / (pstdev(self.values) + 1e-9)
            self.has_ended |= z >= settings.stop_at

    def save(self, folder: Path, rank: int, ranks: int) -> dict[str, str]:
        """Write them, by the first rank: all have the same; returns the SHA-256 of the file."""
        if rank:
            return {}
        folder.mkdir()
        with (folder / _FILE).open("w", encoding="utf-8") as file:
            json.dump({"values": self.values, "has_ended": self.has_ended}, file)
            file.flush()
            os.fsync(file.fileno())
        return {_FILE: sha256_of(folder / _FILE)}

    def load(self, folder: Path) -> None:
        """Continue saved ones, or begin with none where a state has none."""
        stored = json.loads((folder / _FILE).read_text(encoding="utf-8")) if folder.is_dir() else {}
        self.values, self.has_ended = stored.get("values", []), stored.get("has_ended", False)


@cache
def repositioning(kind: type[Trainer]) -> type[Trainer]:
    """Derive a trainer from ``kind`` that makes fast steps, goes back and makes a slow one."""

    @dataclass(frozen=True)
    class Repositioning(kind):  # type: ignore[valid-type, misc]
        __doc__ = kind.__doc__
        objective: Any

        def __post_init__(self) -> None:
            if hasattr(super(), "__post_init__"):
                super().__post_init__()
            self.engine.beside.setdefault("slow_fast", Entropies())

        def step(self, batch: Sequence[int], lengths: Sequence[int], rate: float, old: LogRatios = NONE_OLD) -> Metrics:
            """Make the fast steps, go back, and make the slow step, whose metrics are the step's."""
            began, settings, entropies = time.monotonic(), self.objective.slow_fast, self.engine.beside["slow_fast"]
            fast = 0 if entropies.has_ended else settings.fast_steps
            if fast and not old and type(self.objective).refresh_steps is not Method.refresh_steps:
                old = self.log_ratios(batch)  # pi_old has the weights from before the fast steps
            pieces = self.engine.partition.pieces() if fast else []
            start = [piece.values[WEIGHT].clone() for piece in pieces]
            for _ in range(fast):
                metrics: Metrics = super().step(batch, lengths, rate, old)
                if metrics["skipped"]:  # no signal: neither has any other of them
                    return metrics | {"fast_steps": 0}
            for piece, before in zip(pieces, start, strict=True):
                piece.values[WEIGHT].copy_(before.lerp_(piece.values[WEIGHT], settings.alpha))
            if fast:
                self.engine.partition.renew()
            del start
            metrics = super().step(batch, lengths, rate, old)
            entropies.take(metrics["entropy"], settings)
            return metrics | {"fast_steps": fast, "seconds": time.monotonic() - began}

    Repositioning.__name__ = Repositioning.__qualname__ = kind.__name__
    return Repositioning
