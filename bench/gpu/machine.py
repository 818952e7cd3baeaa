"""The machine without the model: how fast its core launches kernels, and what its device can do at best."""

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from bench.gpu.shapes import device, synchronize
from oapl_core.settings.training import TrainingConfig
from oapl_core.training.speed import copy_tb_per_s, matmul_tflops

NARROW = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "vocab_size": 512,
}
"""So narrow that the device waits for the core: what is measured is Python, torch and DeepSpeed."""
TOKENS, STEPS = 64, 5
PEAK_SIZE = 8192


def narrow_model(layers: int) -> Any:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(**NARROW, num_hidden_layers=layers, tie_word_embeddings=True, dtype="float32")
    return Qwen3ForCausalLM(config)


def host(options: dict[str, Any], _folder: Path) -> dict[str, Any]:
    """Milliseconds of one forward and backward pass of a model of many narrow layers.

    ``options``: ``layers``; ``recompute``; ``zero`` is 1 or 3 through the project's engine, None for torch alone.
    """
    torch.set_num_threads(1)
    model = narrow_model(options["layers"])
    if options["recompute"]:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.train()
    draw = random.Random(0)
    id_ST = torch.tensor([[draw.randrange(2, 512) for _ in range(TOKENS)]])
    if options["zero"] is None:
        found = timed(*_plain(model, id_ST))
    else:
        found = timed(*_through_engine(model, id_ST, options["zero"]))
    return {**found, "threads": 1, "tokens": TOKENS, "runs_on": device().type}


def timed(forward: Callable[[], torch.Tensor], backward: Callable[[torch.Tensor], object]) -> dict[str, Any]:
    """Least of some, after two that are not counted."""
    best: dict[str, Any] = {"ms": float("inf")}
    for number in range(STEPS + 2):
        synchronize()
        began = time.perf_counter()
        loss = forward()
        synchronize()
        middle = time.perf_counter()
        backward(loss)
        synchronize()
        end = time.perf_counter()
        if number > 1 and 1e3 * (end - began) < best["ms"]:
            whole, first = 1e3 * (end - began), 1e3 * (middle - began)
            best = {"ms": round(whole, 2), "forward_ms": round(first, 2), "backward_ms": round(whole - first, 2)}
    return best


def _plain(model: Any, id_ST: torch.Tensor) -> tuple[Callable[[], torch.Tensor], Callable[[torch.Tensor], object]]:
    model, ids = model.to(device()), id_ST.to(device())

    def forward() -> torch.Tensor:
        model.zero_grad(set_to_none=True)
        found: torch.Tensor = model(input_ids=ids, use_cache=False).logits.float().square().mean()
        return found

    return forward, lambda loss: loss.backward()


def _through_engine(
    model: Any, id_ST: torch.Tensor, zero: int
) -> tuple[Callable[[], torch.Tensor], Callable[[torch.Tensor], object]]:
    from oapl_core.training.engine import TrainingEngine
    from oapl_core.training.model.logprobs import Policy

    training = TrainingConfig(zero_stage=zero, dtype="float32", trackers=())  # type: ignore[arg-type]
    engine = TrainingEngine(Policy(model, 1.0, 512), training)
    one, whole = torch.ones(1, dtype=torch.int64), torch.tensor([TOKENS])
    given = [x.to(engine.device) for x in (id_ST, one, whole)]
    # never at the step's end: what is summed there is once a step, not once a micro-batch
    return lambda: engine(*given, last=False).sum(), engine.backward


def peaks(options: dict[str, Any], _folder: Path) -> dict[str, Any]:
    """TFLOP/s of matrix products and TB/s of a copy, each at best."""
    size, place = options.get("size", PEAK_SIZE), device()
    tflops = {name: matmul_tflops(getattr(torch, name), size, device=place) for name in ("bfloat16", "float32")}
    if place.type == "cuda":
        before = torch.backends.cuda.matmul.fp32_precision
        torch.backends.cuda.matmul.fp32_precision = "tf32"
        tflops["tf32"] = matmul_tflops(torch.float32, size, device=place)
        torch.backends.cuda.matmul.fp32_precision = before
    rounded = {name: round(value, 2) for name, value in tflops.items()}
    return {"product_tflops": rounded, "copy_tb_per_s": round(copy_tb_per_s(place), 3)}
