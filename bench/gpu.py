"""The trainer on one GPU: ``python -m bench.gpu output|step ...``, one JSON line each.

``output``: log-probs of the output layer, forwards and backwards, ours in TF32 and in float32 against torch's
log_softmax of the whole matrix, with errors against float64. ``step``: optimiser steps of a random Qwen3 of the sizes
that its authors published, with the memory beside the estimate. What `oapl prove` measures is not measured here again.
"""

import argparse
import json
import random
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from deployments.proving import made
from deployments.proving.training import timed_steps
from oapl_core.model_folder import policy_hash
from oapl_core.training import logprobs
from tests.core.training.made_round import make_run, write_groups

SIZES = {  # hidden size, feed-forward size, layers, heads, tied output layer
    "0.6B": (1024, 3072, 28, 16, True),
    "1.7B": (2048, 6144, 28, 16, True),
    "4B": (2560, 9728, 36, 32, True),
    "8B": (4096, 12288, 36, 32, False),
}
VOCABULARY, CHECKED = 151936, 64


def write_model(folder: Path, size: str) -> Path:
    """A random Qwen3 in bfloat16."""
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "tie_word_embeddings")
    shape = dict(zip(names, SIZES[size], strict=True))
    more = {"num_key_value_heads": 8, "head_dim": 128, "vocab_size": VOCABULARY}
    return folder if (folder / "config.json").is_file() else made.write_model(folder, shape | more, "bfloat16")


def seconds(action: Callable[[], object], repeats: int = 3) -> float:
    """Median of ``repeats``, after one that is not counted."""
    taken = []
    for _ in range(repeats + 1):
        torch.cuda.synchronize()
        began = time.perf_counter()
        action()
        torch.cuda.synchronize()
        taken.append(time.perf_counter() - began)
    return sorted(taken[1:])[repeats // 2]


def output(tokens: int, hidden: int) -> dict[str, Any]:
    """Times, errors and peaks of one output layer in bfloat16."""
    torch.manual_seed(0)
    state = torch.randn(tokens, hidden, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    weight = (torch.randn(VOCABULARY, hidden, device="cuda") * hidden**-0.5).bfloat16().requires_grad_()
    ids, up = torch.randint(VOCABULARY, (tokens,), device="cuda"), torch.randn(tokens, device="cuda")
    entropy = torch.zeros(tokens, device="cuda")

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
    report: dict[str, Any] = {"tokens": tokens, "hidden": hidden, "vocabulary": VOCABULARY}
    for name, way in {"tf32": ours, "float32": ours_float32, "log_softmax": log_softmax}.items():
        state.grad = weight.grad = None
        torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated()
        found = way()
        apart = (state.grad[:CHECKED].double() - true_gradient).norm() / true_gradient.norm()  # type: ignore[index]
        report[name] = {
            "error_nats": (found[:CHECKED].double() - true).abs().max().item(),
            "gradient_error": apart.item(),
            "entropy_error": (entropy[:CHECKED].double() - true_entropy).abs().max().item(),
            "peak_gib": round((torch.cuda.max_memory_allocated() - held) / 2**30, 2),
            "seconds": seconds(way),
        }
    return report


def step(model: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Optimiser steps over answers of ``options.length`` tokens each."""
    draw, identity = random.Random(1), policy_hash(model)
    rows = [
        {
            "rollout_id": f"r{i}",
            "problem_id": f"p{i // 8}",
            "group": i // 8,
            "policy_hash": identity,
            "prompt_ids": [draw.randrange(2, 4096) for _ in range(options.prompt)],
            "response_ids": [draw.randrange(2, 4096) for _ in range(options.length)],
            "behavior_logprobs": [-12.0] * options.length,
            "temperature": 1.0,
            "reward": float(i % 2),
        }
        for i in range(options.sequences)
    ]
    settings = {
        "dtype": options.dtype,
        "zero_stage": options.zero,
        "tokens_per_micro_batch": options.budget,
        "packing": options.packing,
        "recompute": int(options.recompute) if options.recompute.isdigit() else options.recompute,
        "offload_optimizer": options.offload,
        "logprob_chunk": 4096,
        "batch_size": options.sequences,
    }
    run = make_run(options.folder / f"run-{time.time_ns()}", model, **settings)
    write_groups(run, rows)
    return {"model": model.name, **settings, **timed_steps(run, options.steps + 1, 1e-7)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("case", choices=["output", "step"])
    parser.add_argument("--size", choices=list(SIZES), default="0.6B")
    parser.add_argument("--folder", type=Path, default=Path("data/bench-gpu"), help="for models and runs")
    parser.add_argument("--sequences", type=int, default=64)
    parser.add_argument("--prompt", type=int, default=256)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--budget", type=int, default=16384)
    parser.add_argument("--zero", type=int, default=1)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--packing", default="auto")
    parser.add_argument("--offload", default="none")
    parser.add_argument("--recompute", default="all", help="as `training.recompute`")
    parser.add_argument("--steps", type=int, default=2)
    options = parser.parse_args()
    if options.case == "output":
        found = output(8192, SIZES[options.size][0])
    else:
        found = step(write_model(options.folder / options.size, options.size), options)
    device = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    print(json.dumps({"case": options.case, **device, **found}), flush=True)


if __name__ == "__main__":
    main()
