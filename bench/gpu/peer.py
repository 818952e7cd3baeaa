"""The loop to beat: transformers' model, Liger's kernels and FlashAttention where they import, fused AdamW.

The same model, tokens and micro-batches as ``step``. Rows are packed with FlashAttention 2 where its package is
installed; else they lie one below the other, which loses nothing, as all are equally long. It does less than our step:
cross-entropy in place of OAPL's loss, no entropies, weights and moments in bfloat16 in place of float32.
"""

import importlib
import importlib.util
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

from bench.gpu.shapes import device, forget_peak, peak_gib, synchronize, write_model
from bench.gpu.step import RATE, STEPS, WARM, gpu_busy_seconds, made_up_rows, utilisation
from oapl_core.training.speed import ModelFlops

IGNORED, CHUNK = -100, 4096


def peer(options: dict[str, Any], folder: Path) -> dict[str, Any]:
    """``options`` as of ``step``; of its ``training`` the type, micro-batch and whether layers are recomputed."""
    training, length = options["training"], options["prompt"] + options["length"]
    began = time.monotonic()
    model, used = load(write_model(folder / options["size"], options["size"]), training)
    flops = ModelFlops.of(model)
    sequences = max(1, options["tokens"] // length)
    rows = made_up_rows("", sequences, options["prompt"], options["length"], 500)
    batches = micro_batches(rows, max(1, training["tokens_per_micro_batch"] // length), used["packed"])
    fused = device().type == "cuda" or None
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95), weight_decay=0.01, fused=fused)
    answers = sequences * options["length"]

    def step() -> float:
        total = torch.zeros((), device=device())
        for batch in batches:
            loss = loss_of(model, batch, used["liger"], answers)
            loss.backward()
            total += loss.detach()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return float(total)

    start_s = time.monotonic() - began
    forget_peak()
    losses, taken = timed(step, options.get("steps", STEPS))
    wall = sorted(taken[options.get("warm", WARM) :])
    median = wall[len(wall) // 2]
    need = flops(sequences * length, answers, sequences * length**2)
    return {
        "tokens": sequences * length,
        "tokens_per_s": round(sequences * length / median, 1),
        "seconds": round(median, 4),
        "all_seconds": [round(one, 4) for one in taken],
        **utilisation(need / median / 1e12, training["dtype"]),
        "peak_gib": peak_gib(),
        "gpu_busy_s": gpu_busy_seconds(step),
        "computed_with": used,
        "loss": losses,
        "start_s": round(start_s, 2),
    }


def timed(step: Callable[[], float], steps: int) -> tuple[list[float], list[float]]:
    """Losses and seconds."""
    losses, taken = [], []
    for _ in range(steps):
        synchronize()
        began = time.perf_counter()
        losses.append(step())
        synchronize()
        taken.append(time.perf_counter() - began)
    return losses, taken


def load(model_dir: Path, training: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The model, and what it computes with."""
    from transformers import AutoModelForCausalLM

    on_gpu = device().type == "cuda"
    used = {
        "liger": on_gpu and importlib.util.find_spec("liger_kernel") is not None,
        "packed": on_gpu and importlib.util.find_spec("flash_attn_2_cuda") is not None,
        "recompute": training["recompute"],
    }
    if used["liger"]:
        liger: Any = importlib.import_module("liger_kernel.transformers")
        liger.apply_liger_kernel_to_qwen3(cross_entropy=False, fused_linear_cross_entropy=True)
    kernel = "flash_attention_2" if used["packed"] else "sdpa"
    dtype = getattr(torch, training["dtype"])
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=dtype, attn_implementation=kernel).to(device())
    if training["recompute"] == "all":
        model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()
    return model, used | {"attention": kernel}


def micro_batches(rows: list[dict[str, Any]], count: int, packed: bool) -> list[dict[str, Tensor]]:
    """Ids, labels and, for packed rows, places of ``count`` sequences at a time."""
    found = []
    for first in range(0, len(rows), count):
        own = rows[first : first + count]
        ids = torch.tensor([row["prompt_ids"] + row["response_ids"] for row in own])
        labels = ids.clone()
        labels[:, : len(own[0]["prompt_ids"])] = IGNORED
        place = torch.arange(ids.shape[1]).expand_as(ids)
        tensors = {"input_ids": ids, "labels": labels} | ({"position_ids": place} if packed else {})
        if packed:  # the first token of a sequence is never a label, so none is asked of its neighbour
            tensors = {name: tensor.reshape(1, -1) for name, tensor in tensors.items()}
        found.append({name: tensor.to(device()) for name, tensor in tensors.items()})
    return found


def loss_of(model: Any, batch: dict[str, Tensor], liger: bool, answers: int) -> Tensor:
    """This micro-batch's part of the mean over the step's answer tokens."""
    labels = batch["labels"]
    if liger:
        fused: Tensor = model(**batch, use_cache=False, num_items_in_batch=answers).loss
        return fused
    given = {name: tensor for name, tensor in batch.items() if name != "labels"}
    hidden = model.base_model(**given, use_cache=False).last_hidden_state[:, :-1]
    is_asked = labels[:, 1:] != IGNORED
    parts = zip(hidden[is_asked].split(CHUNK), labels[:, 1:][is_asked].split(CHUNK), strict=True)
    weight = model.get_output_embeddings().weight
    total = [checkpoint(_cross_entropy, part, weight, own, use_reentrant=False) for part, own in parts]
    return torch.stack(total).sum() / answers


def _cross_entropy(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    """Logits of one chunk exist, and again in the backward pass."""
    return cross_entropy((hidden @ weight.T).float(), labels, reduction="sum")
