"""The output layer alone: log-probs forwards and backwards, ours in TF32 and in float32.

Beside them torch's log_softmax of the whole matrix in bfloat16. Errors are against float64.
"""

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from bench.gpu.shapes import SIZES, VOCABULARY, device, forget_peak, seconds
from oapl_core.training.model import logprobs

CHECKED = 64
"""Rows whose errors are measured."""


def output(options: dict[str, Any], _folder: Path) -> dict[str, Any]:
    """Times, errors and peaks of one output layer in bfloat16. ``options``: ``size``, ``tokens``, ``vocabulary``."""
    tokens, hidden = options["tokens"], SIZES[options["size"]][0]
    vocabulary, place = options.get("vocabulary", VOCABULARY), device()
    torch.manual_seed(0)
    state = torch.randn(tokens, hidden, device=place).bfloat16().requires_grad_()
    weight = (torch.randn(vocabulary, hidden, device=place) * hidden**-0.5).bfloat16().requires_grad_()
    ids, up = torch.randint(vocabulary, (tokens,), device=place), torch.randn(tokens, device=place)
    entropy = torch.zeros(tokens, device=place)
    with torch.no_grad():
        exact = (state[:CHECKED].double() @ weight.double().T).log_softmax(1)
        true = exact.gather(1, ids[:CHECKED, None])[:, 0]
        own = weight.double()[ids[:CHECKED]] - exact.exp() @ weight.double()
        true_gradient, true_entropy = own * up[:CHECKED, None].double(), -(exact.exp() * exact).sum(1)
        del exact, own
    report: dict[str, Any] = {"tokens": tokens, "hidden": hidden, "vocabulary": vocabulary}
    for name, way in ways(state, weight, ids, up, entropy).items():
        for tensor in (state, weight):
            tensor.grad = None
        forget_peak()
        held = torch.cuda.memory_allocated() if place.type == "cuda" else 0
        found = way()
        assert state.grad is not None
        apart = (state.grad[:CHECKED].double() - true_gradient).norm() / true_gradient.norm()
        peak = torch.cuda.max_memory_allocated() - held if place.type == "cuda" else None
        report[name] = {
            "error_nats": (found[:CHECKED].double() - true).abs().max().item(),
            "gradient_error": apart.item(),
            "peak_gib": None if peak is None else round(peak / 2**30, 2),
            "seconds": seconds(way),
        }
        if name in ("tf32", "float32"):
            report[name]["entropy_error"] = (entropy[:CHECKED].double() - true_entropy).abs().max().item()
    return report


def ways(state: Tensor, weight: Tensor, ids: Tensor, up: Tensor, entropy: Tensor) -> dict[str, Callable[[], Tensor]]:
    """Each goes forwards and backwards and gives the log-probs; ours measures entropies, too."""

    def ours() -> Tensor:
        found = logprobs.token_logprobs(state, weight, ids, entropy_T=entropy)
        found.backward(up)
        return found.detach()

    def ours_float32() -> Tensor:
        with mock.patch.object(logprobs, "tensor_cores", return_value=nullcontext()):
            return ours()

    def whole(logits: Tensor) -> Tensor:
        found: Tensor = logits.log_softmax(1).gather(1, ids[:, None])[:, 0]
        found.backward(up)
        return found.detach()

    return {
        "tf32": ours,
        "float32": ours_float32,
        "log_softmax": lambda: whole((state @ weight.T).float()),
    }
