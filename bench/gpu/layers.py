"""The output layer alone, and whole optimiser steps of random Qwen3 models; on a CPU where there is no GPU.

What `oapl prove` measures is not measured here again.
"""

import random
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from deployments.proving import made
from deployments.proving.training import timed_steps
from oapl_core.model_folder import model_config, policy_hash
from oapl_core.run_folder.run import Run
from oapl_core.training import logprobs
from tests.core.training.made_round import make_run, write_groups

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SIZES = {  # hidden size, feed-forward size, layers, heads, tied output layer
    "tiny": (64, 192, 2, 4, True),
    "0.6B": (1024, 3072, 28, 16, True),
    "1.7B": (2048, 6144, 28, 16, True),
    "4B": (2560, 9728, 36, 32, True),
    "8B": (4096, 12288, 36, 32, False),
}
VOCABULARY, CHECKED = 151936, 64


def write_model(folder: Path, size: str) -> Path:
    """A random Qwen3 in bfloat16; the tiny one in float32."""
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "tie_word_embeddings")
    shape = dict(zip(names, SIZES[size], strict=True))
    more = {"num_key_value_heads": 8, "head_dim": 128, "vocab_size": VOCABULARY}
    if size == "tiny":
        more = {"num_key_value_heads": 2, "head_dim": 32, "vocab_size": 512}
    is_there = (folder / "config.json").is_file()
    return folder if is_there else made.write_model(folder, shape | more, "float32" if size == "tiny" else "bfloat16")


def wait() -> None:
    """Until the device has done all that was launched."""
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


def allocated(peak: bool = False) -> int:
    """Bytes that torch holds, or the most since the last reset; 0 on a CPU."""
    if DEVICE.type == "cpu":
        return 0
    return torch.cuda.max_memory_allocated() if peak else torch.cuda.memory_allocated()


def seconds(action: Callable[[], object], repeats: int = 3) -> float:
    """Median of ``repeats``, after one that is not counted."""
    taken = []
    for _ in range(repeats + 1):
        wait()
        began = time.perf_counter()
        action()
        wait()
        taken.append(time.perf_counter() - began)
    return sorted(taken[1:])[repeats // 2]


def output(tokens: int, hidden: int, vocabulary: int = VOCABULARY) -> dict[str, Any]:
    """Times, errors and peaks of one output layer in bfloat16."""
    torch.manual_seed(0)
    state = torch.randn(tokens, hidden, device=DEVICE, dtype=torch.bfloat16, requires_grad=True)
    weight = (torch.randn(vocabulary, hidden, device=DEVICE) * hidden**-0.5).bfloat16().requires_grad_()
    ids, up = torch.randint(vocabulary, (tokens,), device=DEVICE), torch.randn(tokens, device=DEVICE)
    entropy = torch.zeros(tokens, device=DEVICE)

    def ours() -> Tensor:
        found = logprobs.token_logprobs(state, weight, ids, entropy_T=entropy)
        found.backward(up)
        return found.detach()

    def ours_float32() -> Tensor:
        with mock.patch.object(logprobs, "tensor_cores", return_value=nullcontext()):
            return ours()

    def log_softmax() -> Tensor:
        found: Tensor = (state @ weight.T).float().log_softmax(1).gather(1, ids[:, None])[:, 0]
        found.backward(up)
        return found.detach()

    with torch.no_grad():
        exact = (state[:CHECKED].double() @ weight.double().T).log_softmax(1)
        true = exact.gather(1, ids[:CHECKED, None])[:, 0]
        own = weight.double()[ids[:CHECKED]] - exact.exp() @ weight.double()
        true_gradient, true_entropy = own * up[:CHECKED, None].double(), -(exact.exp() * exact).sum(1)
    report: dict[str, Any] = {"tokens": tokens, "hidden": hidden, "vocabulary": vocabulary}
    for name, way in {"tf32": ours, "float32": ours_float32, "log_softmax": log_softmax}.items():
        state.grad = weight.grad = None
        if DEVICE.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        held = allocated()
        found = way()
        apart = (state.grad[:CHECKED].double() - true_gradient).norm() / true_gradient.norm()  # type: ignore[index]
        report[name] = {
            "error_nats": (found[:CHECKED].double() - true).abs().max().item(),
            "gradient_error": apart.item(),
            "entropy_error": (entropy[:CHECKED].double() - true_entropy).abs().max().item(),
            "peak_gib": round((allocated(peak=True) - held) / 2**30, 2),
            "seconds": seconds(way),
        }
    return report


@dataclass(frozen=True)
class Work:
    """What an optimiser step works on: answers of one length, eight to a prompt."""

    sequences: int = 64
    prompt: int = 256
    """Tokens."""
    length: int = 512
    """Tokens of an answer."""

    @property
    def tokens(self) -> int:
        """Of a step, prompts included."""
        return self.sequences * (self.prompt + self.length)


def write_round(folder: Path, model: Path, work: Work, **settings: Any) -> Run:
    """A run whose round 0 is ready to be trained on."""
    draw, identity = random.Random(1), policy_hash(model)
    vocabulary = min(4096, model_config(model)["vocab_size"])
    rows = [
        {
            "rollout_id": f"r{i}",
            "problem_id": f"p{i // 8}",
            "group": i // 8,
            "policy_hash": identity,
            "prompt_ids": [draw.randrange(2, vocabulary) for _ in range(work.prompt)],
            "response_ids": [draw.randrange(2, vocabulary) for _ in range(work.length)],
            "behavior_logprobs": [-12.0] * work.length,
            "temperature": 1.0,
            "reward": float(i % 2),
        }
        for i in range(work.sequences)
    ]
    run = make_run(folder / f"run-{time.time_ns()}", model, **{"batch_size": work.sequences, **settings})
    write_groups(run, rows)
    return run


def step(folder: Path, model: Path, work: Work, steps: int = 2, **settings: Any) -> dict[str, Any]:
    """Seconds, loss and memory of optimiser steps; the first is not counted."""
    run = write_round(folder, model, work, **settings)
    return {"model": model.name, **settings, **timed_steps(run, steps + 1, 1e-7)}
