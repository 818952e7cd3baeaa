"""Where a step's time goes on a GPU: kernels by kind, idle time, launches and waits; from torch's profiler.

A kernel's kind is told from its name, which libraries choose: `KINDS`, in order, the first that fits.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from bench.gpu.layers import DEVICE, Work, wait, write_round
from oapl_core.model_folder import policy_hash

KINDS = (
    ("attention", r"flash|fmha|attention|mha_|varlen"),
    ("optimiser", r"adam|multi_tensor|foreach|lamb"),
    ("gemm", r"gemm|cutlass|cublas|nvjet|xmma|s16816|_mm_|matmul|splitk|aten::(?:addmm|mm|bmm)"),
    ("output layer", r"softmax|logsumexp|scatter_add|_scatter_gather|gather_kernel"),
    ("copies", r"memcpy|memset|copy_kernel|CatArray|direct_copy|aten::copy_"),
    ("communication", r"nccl"),
)
"""What matches none is elementwise: norms, rotary embedding, activations, sums."""
_WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")
_LAUNCHES = ("cudaLaunchKernel", "cuLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernelEx")
_STEPS, _WARM = 3, 2


class Kernel(NamedTuple):
    """A kernel's run on the device, microseconds."""

    name: str
    start: float
    end: float


def kind_of(name: str) -> str:
    """One of KINDS, or elementwise."""
    return next((kind for kind, pattern in KINDS if re.search(pattern, name, re.IGNORECASE)), "elementwise")


def shares(kernels: Iterable[Kernel], wall_us: float, steps: int) -> dict[str, float]:
    """Milliseconds a step of each kind; ``idle`` is what of the wall time no kernel covers."""
    spent, covered, end = defaultdict[str, float](float), 0.0, float("-inf")
    for kernel in sorted(kernels, key=lambda one: one.start):
        spent[kind_of(kernel.name)] += kernel.end - kernel.start
        covered += max(0.0, kernel.end - max(kernel.start, end))
        end = max(end, kernel.end)
    found = {kind: spent[kind] for kind in sorted(spent)} | {"idle": max(0.0, wall_us - covered)}
    return {kind: round(us / 1e3 / steps, 3) for kind, us in found.items()}


def profile(folder: Path, model: Path, work: Work, **settings: Any) -> dict[str, Any]:
    """Profile optimiser steps after two that are not counted."""
    import torch
    from torch._C._autograd import DeviceType
    from torch.profiler import ProfilerActivity

    from oapl_core.training.examples import read_examples
    from oapl_core.training.job import make_job
    from oapl_core.training.loading import load
    from oapl_core.training.steps import Trainer

    job = make_job(write_round(folder, model, work, **settings), 0)
    examples = read_examples(job.run.groups(0), policy_hash(job.behavior), job.behavior)
    loaded = load(job, examples)
    trainer = Trainer(loaded.engine, job.objective, examples, job.training, seed=0, round_number=0, epochs=1)
    whole = list(range(len(examples.lengths)))
    for _ in range(_WARM):
        trainer.step(whole, examples.lengths, 1e-7)
    on_gpu = DEVICE.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    wait()
    with torch.profiler.profile(activities=activities, acc_events=True) as profiler:
        for _ in range(_STEPS):
            trainer.step(whole, examples.lengths, 1e-7)
        wait()
    kernels, calls = list[Kernel](), Counter[str]()
    first, last = float("inf"), 0.0
    for event in profiler.events():
        first, last = min(first, event.time_range.start), max(last, event.time_range.end)
        calls[event.name] += 1
        # without a GPU the operators stand in for kernels, those that call no other
        is_kernel = event.device_type == DeviceType.CUDA if on_gpu else not event.cpu_children
        if is_kernel:
            kernels.append(Kernel(event.name, event.time_range.start, event.time_range.end))
    found = shares(kernels, last - first, _STEPS)
    loaded.engine.close()
    return {
        "model": model.name,
        **settings,
        "tokens": work.tokens,
        "ms": found,
        "wall_ms": round((last - first) / 1e3 / _STEPS, 3),
        "gpu_ms": round(sum(ms for kind, ms in found.items() if kind != "idle"), 3) if on_gpu else None,
        "launches": sum(calls[name] for name in _LAUNCHES) // _STEPS,
        "waits": sum(calls[name] for name in _WAITS) // _STEPS,
    }
