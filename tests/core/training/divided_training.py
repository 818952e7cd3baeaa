"""Trains a round's first rank or ranks and says how much memory each needs for the weights: ``-m ... RUN [whole]``.

``whole`` loads the model in every rank and leaves it to DeepSpeed to divide it, as it was done before division.py. A
rank prints ``LOADED rank bytes``: the most anonymous memory that it held until its last weight was sharded, above what
it held when it began to load. Weights that are only mapped from their file are not held.
"""

import importlib
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch

from oapl_core.run_folder.run import Run
from oapl_core.training.model import checkpoint, division, loading
from oapl_core.training.train import train
from tests.core.training.forked_training import IMPORTED


def held() -> int:
    """Anonymous memory of this process, bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) * 1024


class Peak:
    """The largest ``held`` since it was made, sampled every millisecond."""

    def __init__(self) -> None:
        self.first = self.largest = held()
        self.is_over = threading.Event()
        self.thread = threading.Thread(target=self._watch)
        self.thread.start()

    def _watch(self) -> None:
        while not self.is_over.is_set():
            self.largest = max(self.largest, held())
            time.sleep(0.001)

    def end(self) -> int:
        self.is_over.set()
        self.thread.join()
        return max(self.largest, held()) - self.first


def load_whole(run: Run) -> None:
    """Every rank reads the model, in the type that it trains in."""
    plain, dtype = checkpoint.load_model, getattr(torch, run.config.training.dtype)

    def load_model(folder: Path, **_: Any) -> checkpoint.StoredModel:
        stored = plain(folder)
        checkpoint.cast(stored.model, dtype)
        return stored

    checkpoint.load_model = load_model  # type: ignore[assignment]
    division.divide = lambda *_: None


def measure_loading() -> None:
    """Tell the peak when DeepSpeed has a model of shards, whoever made them."""
    for module in IMPORTED:  # libraries are no weights
        importlib.import_module(module)
    from deepspeed.runtime.zero.parameter_offload import DeepSpeedZeRoOffload

    plain, sharding, peaks = loading.load, DeepSpeedZeRoOffload._convert_to_zero_parameters, list[Peak]()

    def load(*arguments: Any) -> Any:
        peaks.append(Peak())
        return plain(*arguments)

    def shard(*arguments: Any) -> None:
        sharding(*arguments)
        print("LOADED", os.environ.get("RANK", "0"), peaks[0].end(), flush=True)

    loading.load = load  # type: ignore[assignment]
    DeepSpeedZeRoOffload._convert_to_zero_parameters = shard


def main(folder: str, *how: str) -> None:
    run = Run.open(Path(folder))
    if how == ("whole",):
        load_whole(run)
    measure_loading()
    train(run, 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
