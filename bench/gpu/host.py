"""What the machine's core and its GPU can do, before any model is judged: dispatch, matrix products, copies."""

import time
from pathlib import Path
from typing import Any

import torch

from bench.gpu.layers import DEVICE, Work, step, wait
from deployments.proving import made
from oapl_core.training.speed import copy_tb_per_s, matmul_tflops

_LAYERS = 28
_NARROW = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2}


def narrow_model(folder: Path, layers: int = _LAYERS) -> Path:
    """A model so narrow that a step's time is the host's, which launches as many kernels as for a wide one."""
    shape = {**_NARROW, "head_dim": 16, "num_hidden_layers": layers, "vocab_size": 512}
    return folder if (folder / "config.json").is_file() else made.write_model(folder, shape, "float32")


def dispatch(folder: Path, layers: int = _LAYERS) -> dict[str, Any]:
    """Milliseconds of a forward and a backward pass through narrow layers, with and without recomputation."""
    from oapl_core.training.checkpoint import load_model
    from oapl_core.training.logprobs import Policy

    policy = Policy(load_model(narrow_model(folder / f"narrow-{layers}", layers)).model).to(DEVICE)
    policy.train()
    ids, one, whole = torch.arange(16)[None].to(DEVICE), *(torch.tensor([n], device=DEVICE) for n in (1, 16))
    found: dict[str, Any] = {"layers": layers}
    for name in ("kept", "recomputed"):
        if name == "recomputed":
            policy.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        taken = []
        for _ in range(6):
            wait()
            began = time.perf_counter()
            policy(ids, one, whole).sum().backward()
            wait()
            taken.append(time.perf_counter() - began)
        found[f"{name}_ms"] = round(1e3 * min(taken[1:]), 2)
    return found


def dispatch_zero(folder: Path, zero: int, layers: int = _LAYERS) -> dict[str, Any]:
    """Milliseconds of a whole step of one micro-batch through DeepSpeed at a ZeRO stage."""
    model = narrow_model(folder / f"narrow-{layers}", layers)
    settings = {"dtype": "float32", "zero_stage": zero, "recompute": "all", "tokens_per_micro_batch": 4096}
    done = step(folder, model, Work(sequences=8, prompt=4, length=12), steps=4, **settings)
    return {"layers": layers, "zero": zero, "step_ms": round(1e3 * min(done["seconds"][1:]), 2)}


def peaks() -> dict[str, Any]:
    """TFLOP/s of matrix products and TB/s of a copy."""
    size = 8192 if DEVICE.type == "cuda" else 256
    found = {"size": size, "copy_tb_per_s": copy_tb_per_s(DEVICE, 0.2)}
    for name in ("bfloat16", "float32"):
        found[f"{name}_tflops"] = matmul_tflops(getattr(torch, name), size, 0.3, DEVICE)
    if DEVICE.type == "cuda":
        before = torch.backends.cuda.matmul.fp32_precision
        torch.backends.cuda.matmul.fp32_precision = "tf32"
        found["tf32_tflops"] = matmul_tflops(torch.float32, size, 0.3, DEVICE)
        torch.backends.cuda.matmul.fp32_precision = before
    return {name: round(value, 3) for name, value in found.items()}
