"""How fast a step was, and what share of the machine's arithmetic it used (model-FLOPs utilisation).

Counts what the mathematics needs, not what was computed: padding and recomputed activations add nothing. One
multiply-add is 2 FLOPs, a backward pass is twice its forward pass (once where the weights are frozen):

    body       6 N per token                  N: weights but embeddings and output layer, of experts those of top_k
    output     6 V D per response token       prompts are not scored
    attention  6 L A T^2 per sequence of T    L layers, A = heads x head size; causal, so half of the full square

A prompt that answers share counts once.

Reads nothing; measures a matrix product on CPUs.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from oapl_core.model_files.model_folder import experts_of
from oapl_core.training.metrics import Metrics

_SIZE, _SECONDS, _CPU = 1024, 0.3, torch.device("cpu")
_DATA_SHEETS = {  # TFLOP/s: bfloat16 on tensor cores without sparsity, float32 without tensor cores
    "B200": (2250.0, 75.0),
    "H200": (989.0, 67.0),
    "H100 PCIe": (756.0, 51.0),
    "H100 NVL": (835.0, 60.0),
    "H100": (989.0, 67.0),
    "A100": (312.0, 19.5),
    "L40S": (362.0, 91.6),
    "L40": (181.0, 90.5),
    "A10G": (70.0, 31.5),
    "L4": (121.0, 30.3),
    "RTX 4090": (165.2, 82.6),
}
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
        """Count the FLOPs of a transformers model; weights that are not trained need no gradient of their own."""
        config = model.config.get_text_config()
        embeddings, output = model.get_input_embeddings().weight, model.get_output_embeddings().weight
        outside = {id(embeddings), id(output)}
        body = [(name, p) for name, p in model.named_parameters() if id(p) not in outside]
        top_k, experts = experts_of(lambda name: getattr(config, name, None)) or (1, 1)
        heads = config.num_attention_heads
        width = heads * (getattr(config, "head_dim", None) or config.hidden_size // heads)
        return cls(
            token=sum(
                (6.0 if p.requires_grad else 4.0) * _elements(p) * (top_k / experts if ".experts." in name else 1.0)
                for name, p in body
            ),
            response_token=(6.0 if output.requires_grad else 4.0) * _elements(output),
            squared_token=6.0 * config.num_hidden_layers * width,
        )

    def __call__(self, tokens: float, response_tokens: float, squared_tokens: float) -> float:
        """Count the FLOPs of a step; ``squared_tokens`` is the sum over sequences of their squared length."""
        return self.token * tokens + self.response_token * response_tokens + self.squared_token * squared_tokens


def _elements(parameter: nn.Parameter) -> int:
    """Count the weights of the whole parameter, also where ZeRO-3 has left a shard."""
    return int(getattr(parameter, "ds_numel", parameter.numel()))


def peak_tflops(stated: float | None, dtype: Literal["float32", "bfloat16"], device: torch.device) -> float | None:
    """Return TFLOP/s of one rank: as stated; else measured on a CPU, known by name on a GPU; None where nobody
    knows.
    """
    if stated is not None:
        return stated
    if device.type == "cpu":
        return matmul_tflops(getattr(torch, dtype))
    return known_tflops(torch.cuda.get_device_name(device), dtype)


def known_tflops(name: str, dtype: Literal["float32", "bfloat16"]) -> float | None:
    """Return TFLOP/s of the GPU that its driver calls ``name``, by its data sheet; None if it is not in the table."""
    peaks_of_gpu = next((peaks for part, peaks in _DATA_SHEETS.items() if part in name), None)
    return peaks_of_gpu and peaks_of_gpu[dtype == "float32"]


def matmul_tflops(
    dtype: torch.dtype, size: int = _SIZE, seconds: float = _SECONDS, device: torch.device = _CPU
) -> float:
    """Return the best TFLOP/s of a size x size matrix product on ``device``, tried for ``seconds``."""
    # random numbers: products of ones or zeros draw less power, and so run faster on GPUs
    left, right = (torch.randn(size, size, dtype=dtype, device=device) for _ in range(2))
    return 2.0 * size**3 / _best(lambda: torch.mm(left, right), seconds, device) / 1e12


def copy_tb_per_s(device: torch.device, seconds: float = _SECONDS) -> float:
    """Return the best TB/s of a copy within the memory of ``device``, bytes read and bytes written."""
    source = torch.randn(2**28 if device.type == "cuda" else 2**24, device=device)
    target = torch.empty_like(source)
    return 2.0 * source.nbytes / _best(lambda: target.copy_(source), seconds, device) / 1e12


def _best(action: Callable[[], object], seconds: float, device: torch.device) -> float:
    """Return the seconds that ``action`` takes at best."""
    wait = torch.cuda.synchronize if device.type == "cuda" else _nothing
    action()  # libraries choose a kernel the first time
    wait()
    best, until = float("inf"), time.monotonic() + seconds
    while time.monotonic() < until:
        began = time.perf_counter()
        action()
        wait()
        best = min(best, time.perf_counter() - began)
    return best


def _nothing() -> None:
    """Wait for nothing: a CPU has no queue."""


class Speedometer:
    """Adds speed, utilisation and time left to the metrics of steps."""

    def __init__(self, flops: ModelFlops, peak: float | None, ranks: int, steps: int) -> None:
        """Prepare to measure steps. ``peak`` is in TFLOP/s of one rank; ``steps`` are the round's."""
        self.flops, self.peak, self.ranks, self.steps = flops, peak, ranks, steps
        self._seconds, self._measured = 0.0, 0

    def __call__(self, step: Metrics) -> Metrics:
        """Return the fields to add to ``step``, which has its number, tokens and seconds."""
        self._seconds, self._measured = self._seconds + step["seconds"], self._measured + 1
        tokens, squared = (step[name] - step.get(f"shared_{name}", 0) for name in ("tokens", "squared_tokens"))
        need = self.flops(tokens, step["response_tokens"], squared) * (1 + step.get("fast_steps", 0))
        offered = self.peak and self.peak * 1e12 * self.ranks * step["seconds"]
        return {
            "tokens_per_s": step["tokens"] / step["seconds"],
            "mfu": need / offered if offered else None,
            "seconds_left": (self.steps - step["step"]) * self._seconds / self._measured,
        }
