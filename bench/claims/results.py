"""Collected results of a bed, by arm: pass@k of each problem, curves, crossings. Reads what ``collect.py`` writes."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import polars as pl

from bench.claims.bootstrap import Cells
from oapl_core.evaluation.pass_at_k import pass_at_k

Row = Mapping[str, Any]
FALL = 0.1
"""pass@1 below an arm's best evaluation that counts as a fall."""


@dataclass(frozen=True)
class Results:
    """Evaluations and steps of a bed."""

    folder: Path
    bed: str = "demo"

    @cached_property
    def _rows(self) -> dict[str, dict[tuple[str, int], list[Row]]]:
        found: dict[str, dict[tuple[str, int], list[Row]]] = {}
        path = self.folder / f"{self.bed}_evaluations.parquet"
        if not path.exists():  # nothing was run
            return found
        frame = pl.read_parquet(path)
        for row in frame.sort("arm", "base", "seed", "step").iter_rows(named=True):
            found.setdefault(row["arm"], {}).setdefault((row["base"], row["seed"]), []).append(row)
        return found

    @cached_property
    def steps(self) -> pl.DataFrame:
        """Training metrics, means of ten steps."""
        return pl.read_parquet(self.folder / f"{self.bed}_steps.parquet")

    @cached_property
    def settings(self) -> dict[str, Any]:
        """What each arm is."""
        path = self.folder / f"{self.bed}_arms.json"
        found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        return found

    @property
    def arms(self) -> list[str]:
        """That have results."""
        return list(self._rows)

    def curves(self, arm: str) -> dict[tuple[str, int], list[Row]]:
        """Evaluations of every base and seed, by step; empty if it was not run."""
        return self._rows.get(arm, {})

    def steps_of(self, arm: str) -> list[int]:
        """Steps at which every base and seed was evaluated."""
        found = [{row["step"] for row in rows} for rows in self.curves(arm).values()]
        return sorted(set.intersection(*found)) if found else []

    def cells(self, arm: str, step: int, k: int = 1) -> Cells:
        """pass@k of each problem at a step; bases and seeds without that evaluation, or with fewer answers, are out."""
        return {
            key: [pass_at_k(row["n"], right, k) for right in row["right"]]
            for key, rows in self.curves(arm).items()
            for row in rows
            if row["step"] == step and row["n"] >= k
        }

    def rollouts(self, arm: str, step: int) -> dict[str, str]:
        """Which rollouts an arm has been trained on up to a step, by base: their hash.

        Results from before hashes were recorded have the device instead. On one device a base answered once for all
        arms of a seed (``machine.py``); answers of two devices differ.
        """
        return {
            base: row.get("rollouts_sha256") or f"of {row['device']}, no hash"
            for (base, _), rows in self.curves(arm).items()
            for row in rows
            if row["step"] == step
        }

    def same_rollouts(self, one: str, other: str, step: int) -> bool:
        """Whether two arms were trained on one file of rollouts, on every base that both have."""
        first, second = self.rollouts(one, step), self.rollouts(other, step)
        return all(first[base] == second[base] for base in first if base in second)

    def devices(self, arm: str) -> set[str]:
        """What computed it."""
        return {row["device"] for rows in self.curves(arm).values() for row in rows}

    def bases(self, arm: str) -> set[str]:
        """Bases that it was run on."""
        return {base for base, _ in self.curves(arm)}


def fell(now: float, best: float) -> bool:
    """Whether pass@1 lies FALL or more below the best."""
    return now <= best - FALL + 1e-9  # 0.3 - 0.1 is less than 0.2


def collapsed(shares: Sequence[float]) -> bool:
    """Whether an arm ends FALL or more below its best evaluation, or below its base, which is the first."""
    return fell(shares[-1], max(shares)) or shares[-1] < shares[0]


def share(row: Row) -> float:
    """pass@1 of an evaluation."""
    return float(sum(row["right"]) / (row["n"] * len(row["right"])))


def at_accuracy(rows: Sequence[Row], accuracy: float, column: str) -> float | None:
    """What ``column`` was when pass@1 first was ``accuracy``, on straight lines between evaluations; None: never."""
    for before, after in pairwise(rows):
        low, high = share(before), share(after)
        if low < accuracy <= high:
            part = (accuracy - low) / (high - low)
            start, end = float(before[column]), float(after[column])
            return start + part * (end - start)
    return None


def sampled_by(arm: Mapping[str, Any], step: float) -> float:
    """Rollouts sampled until an optimiser step: those of the steps so far, or whole rounds if each is used again.

    A round of several passes is sampled before its first step.
    """
    per_step = arm["groups_per_step"] * arm["group_size"]
    if arm["epochs"] == 1:
        return float(per_step * step)
    rounds = math.ceil(step / (arm["interval"] * arm["epochs"]))
    return float(rounds * arm["interval"] * per_step)


def cpu_s(row: Row) -> Row:
    """The row with its CPU seconds in all."""
    return {**row, "cpu_s": row["cpu_sampling_s"] + row["cpu_training_s"] + row["cpu_sync_s"]}
