"""How fast a step was, and what share of the machine's arithmetic it used (model-FLOPs utilisation).

Counts what the mathematics needs, not what was computed: padding and recomputed activations add nothing. One
multiply-add is 2 FLOPs, a backward pass is twice its forward pass (once where the weights are frozen):

    body       6 N per token                  N: weights but embeddings and output layer
    output     6 V D per response token       prompts are not scored
    attention  6 L A T^2 per sequence of T    L layers, A = heads x head size; causal, so half of the full square

Reads nothing; measures a matrix product on CPUs.
"""

import time
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from oapl_core.training.metrics import Metrics

_SIZE, _SECONDS = 1024, 0.3
TIMED = ("seconds", "tokens_per_s", "mfu", "peak_memory_mb", "seconds_left")
"""Metrics that differ between two runs of the same training."""


@dataclass(frozen=True)
class ModelFlops:
    """FLOPs that training on one token, response token or squared token needs."""

    token: float
    response_token: float
    squared_token: float

    @classmethod
    def of(cls, model: Any) -> "ModelFlops":
        """Of a transformers model; weights that are not trained need no gradient of their own."""
        config = model.config.get_text_config()
        embeddings, output = model.get_input_embeddings().weight, model.get_output_embeddings().weight
        outside = {id(embeddings), id(output)}
        body = [p for p in model.parameters() if id(p) not in outside]
        heads = config.num_attention_heads
        width = heads * (getattr(config, "head_dim", None) or config.hidden_size // heads)
        return cls(
            token=sum((6.0 if p.requires_grad else 4.0) * _elements(p) for p in body),
            response_token=(6.0 if output.requires_grad else 4.0) * _elements(output),
            squared_token=6.0 * config.num_hidden_layers * width,
        )

    def __call__(self, tokens: float, response_tokens: float, squared_tokens: float) -> float:
        """FLOPs of a step; ``squared_tokens`` is the sum over sequences of their squared length."""
        return self.token * tokens + self.response_token * response_tokens + self.squared_token * squared_tokens


def _elements(parameter: nn.Parameter) -> int:
    """Weights of the whole parameter, also where ZeRO-3 has left a shard."""
    return int(getattr(parameter, "ds_numel", parameter.numel()))


def peak_tflops(stated: float | None, dtype: Literal["float32", "bfloat16"], device: torch.device) -> float | None:
    """TFLOP/s of one rank: as stated, on a CPU else measured; None where nobody knows."""
    if stated is not None or device.type != "cpu":
        return stated
    return matmul_tflops(getattr(torch, dtype))


def matmul_tflops(dtype: torch.dtype, size: int = _SIZE, seconds: float = _SECONDS) -> float:
    """Best TFLOP/s of a size x size matrix product on this process's threads, tried for ``seconds``."""
    left, right = torch.ones(size, size, dtype=dtype), torch.ones(size, size, dtype=dtype)
    best, until = float("inf"), time.monotonic() + seconds
    while time.monotonic() < until:
        began = time.perf_counter()
        torch.mm(left, right)
        best = min(best, time.perf_counter() - began)
    return 2.0 * size**3 / best / 1e12


class Speedometer:
    """Adds speed, utilisation and time left to the metrics of steps."""

    def __init__(self, flops: ModelFlops, peak: float | None, ranks: int, steps: int) -> None:
        """``peak`` is in TFLOP/s of one rank; ``steps`` are the round's."""
        self.flops, self.peak, self.ranks, self.steps = flops, peak, ranks, steps
        self._seconds, self._measured = 0.0, 0

    def __call__(self, step: Metrics) -> Metrics:
        """What to add to ``step``, which has its number, tokens and seconds."""
        self._seconds, self._measured = self._seconds + step["seconds"], self._measured + 1
        need = self.flops(step["tokens"], step["response_tokens"], step["squared_tokens"])
        offered = self.peak and self.peak * 1e12 * self.ranks * step["seconds"]
        return {
            "tokens_per_s": step["tokens"] / step["seconds"],
            "mfu": need / offered if offered else None,
            "seconds_left": (self.steps - step["step"]) * self._seconds / self._measured,
        }
