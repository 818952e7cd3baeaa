"""The loop to beat: plain transformers, Liger and FlashAttention where they import, packed rows, bf16, fused AdamW.

The same work as ours: the same rollouts, the same loss (OAPL's), log-probs of answers' tokens only, every layer
recomputed or none. What it leaves out is what ours is for: float32 sums of gradients and weights, log-probs that are
exact to 2e-5 nats without the whole matrix, a state to resume from, several ranks.
"""

import random
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bench.gpu.layers import DEVICE, Work, allocated, wait
from oapl_core.training.speed import ModelFlops

_BETA = 1e-3


def train(model_dir: Path, work: Work, budget: int, recompute: bool, steps: int = 2) -> dict[str, Any]:
    """Seconds of steps over ``work`` in packed rows of at most ``budget`` tokens; the first is not counted."""
    from transformers import AutoModelForCausalLM

    on_gpu = DEVICE.type == "cuda"
    dtype = torch.bfloat16 if on_gpu else torch.float32
    has_flash = on_gpu and find_spec("flash_attn") is not None
    attention = "flash_attention_2" if has_flash else "sdpa"
    model: Any = AutoModelForCausalLM.from_pretrained(model_dir, dtype=dtype, attn_implementation=attention).to(DEVICE)
    has_liger = on_gpu and find_spec("liger_kernel") is not None
    if has_liger:
        from transformers.integrations.liger import apply_liger_kernel

        apply_liger_kernel(model, {"cross_entropy": False, "fused_linear_cross_entropy": False})
    model.train()
    if recompute:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-7, fused=on_gpu or None)
    flops = ModelFlops.of(model)
    rows = _rows(work, model.config.vocab_size)
    taken, losses = [], []
    for _ in range(steps + 1):
        wait()
        began = time.perf_counter()
        losses.append(_step(model, rows, work, budget))
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        wait()
        taken.append(time.perf_counter() - began)
    best, length = min(taken[1:]), work.prompt + work.length
    need = flops(work.tokens, work.sequences * work.length, work.sequences * length**2)
    return {
        "model": model_dir.name,
        "liger": has_liger,
        "attention": attention,
        "recompute": recompute,
        "loss": float(losses[0]),
        "seconds": [round(one, 4) for one in taken],
        "tokens": work.tokens,
        "tokens_per_s": work.tokens / best,
        "tflops": need / best / 1e12,
        "peak_gib": allocated(peak=True) / 2**30,
    }


def _rows(work: Work, vocabulary: int) -> list[list[int]]:
    draw = random.Random(1)
    return [[draw.randrange(2, vocabulary) for _ in range(work.prompt + work.length)] for _ in range(work.sequences)]


def _step(model: Any, rows: list[list[int]], work: Work, budget: int) -> Tensor:
    """One pass over all rows, in packed micro-batches; returns the loss."""
    length, total = work.prompt + work.length, torch.zeros((), device=DEVICE)
    count = max(1, budget // length)
    for first in range(0, len(rows), count):
        part = rows[first : first + count]
        ids = torch.tensor([token for row in part for token in row])[None].to(DEVICE)
        places = torch.arange(length).repeat(len(part))[None].to(DEVICE)
        starts = torch.arange(len(part))[:, None] * length
        scored = (starts + torch.arange(work.prompt - 1, length - 1)).flatten().to(DEVICE)
        hidden = model.base_model(input_ids=ids, position_ids=places, use_cache=False).last_hidden_state[0]
        logits = model.get_output_embeddings()(hidden.index_select(0, scored)).float()
        own = ids[0].index_select(0, scored + 1)
        logprobs = logits.gather(1, own[:, None])[:, 0] - logits.logsumexp(1)
        ratio_S = (logprobs + 12.0).view(len(part), work.length).sum(1)
        reward_S = torch.arange(first, first + len(part), device=DEVICE).remainder(2).float()
        loss = (_BETA * ratio_S - (reward_S - 0.5)).square().sum() / len(rows)
        loss.backward()
        total += loss.detach()
    return total
