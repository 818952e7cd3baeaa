"""A step of AdamW on the host, one way beside the other: ``python -m bench.host_adam``.

    --weights N    (50,000,000; float32, 16 bytes each in four arrays)
    --rounds N     (7; every way in each, the fastest counts)

One JSON line for each way: seconds of a step and of building it. Then the largest difference of a weight, after the
first step, from torch's plain loop, in learning rates. ``loop``: torch.optim.AdamW as it is by default on a host.
``fused``: the same with fused = True, as the trainer offloads with. ``deepspeed``: the kernel of DeepSpeedCPUAdam,
compiled first, in a folder of its own; left out where there is no compiler.
"""

import argparse
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

RATE, BETAS, EPS, DECAY = 1e-6, (0.9, 0.95), 1e-10, 0.01
"""The trainer's own."""


class OfTorch:
    """torch.optim.AdamW."""

    def __init__(self, weights: torch.Tensor, fused: bool) -> None:
        self.weights = torch.nn.Parameter(weights.clone())
        self.adam = torch.optim.AdamW(
            [self.weights], lr=RATE, betas=BETAS, eps=EPS, weight_decay=DECAY, fused=fused or None
        )

    def step(self, gradient: torch.Tensor) -> None:
        self.weights.grad = gradient
        self.adam.step()


class OfDeepSpeed:
    """The compiled kernel, called as DeepSpeedCPUAdam does."""

    def __init__(self, weights: torch.Tensor, kernel: Any) -> None:
        self.weights, self.kernel, self.steps = weights.clone(), kernel, 0
        self.moments = torch.zeros_like(weights), torch.zeros_like(weights)
        kernel.create_adam(0, RATE, *BETAS, EPS, DECAY, True, False)

    def step(self, gradient: torch.Tensor) -> None:
        self.steps += 1
        self.kernel.adam_update(0, self.steps, RATE, *BETAS, EPS, DECAY, True, self.weights, gradient, *self.moments)


def built() -> Any:
    """DeepSpeed's kernel; None without a compiler."""
    if not shutil.which("g++"):
        return None
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TORCH_EXTENSIONS_DIR"] = folder
        from deepspeed.ops.op_builder import CPUAdamBuilder

        return CPUAdamBuilder().load(verbose=False)


def ways(weights: torch.Tensor) -> Iterator[tuple[str, Any, float]]:
    """Name of each, something with ``step``, and seconds that it took to build."""
    yield "loop", OfTorch(weights, fused=False), 0.0
    yield "fused", OfTorch(weights, fused=True), 0.0
    began = time.monotonic()
    if kernel := built():
        yield "deepspeed", OfDeepSpeed(weights, kernel), time.monotonic() - began


def gap(one: Any, other: Any) -> float:
    """Largest difference of two ways' weights, in learning rates."""
    return float((one.weights.detach() - other.weights.detach()).abs().max()) / RATE


def timed(work: Callable[[], None]) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--weights", type=int, default=50_000_000)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    torch.manual_seed(0)
    weights, gradient = torch.randn(options.weights) * 0.02, torch.randn(options.weights) * 1e-4
    made = list(ways(weights))
    for _, way, _ in made:
        way.step(gradient)
    gaps = [gap(way, made[0][1]) for _, way, _ in made]
    seconds = [[timed(partial(way.step, gradient)) for _, way, _ in made] for _ in range(options.rounds)]
    for number, (name, _, building_s) in enumerate(made):
        own = sorted(one[number] for one in seconds)
        line = {"way": name, "step_s": own[0], "slowest_s": own[-1], "building_s": building_s}
        print(json.dumps(line | {"gap_in_rates": gaps[number], "threads": torch.get_num_threads()}), flush=True)


if __name__ == "__main__":
    main()
