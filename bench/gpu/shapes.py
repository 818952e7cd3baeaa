"""Random models of the sizes that Qwen3's authors published, and a clock for one device."""

import importlib.metadata
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from oapl_extras.prove import made

SIZES = {  # hidden size, feed-forward size, layers, heads, tied output layer
    "tiny": (64, 128, 2, 2, True),
    "0.6B": (1024, 3072, 28, 16, True),
    "1.7B": (2048, 6144, 28, 16, True),
    "4B": (2560, 9728, 36, 32, True),
    "8B": (4096, 12288, 36, 32, False),
}
VOCABULARY, KEY_HEADS, HEAD = 151936, 8, 128
PACKAGES = ("torch", "triton", "transformers", "deepspeed", "vllm", "liger-kernel", "flash-attn", "flash-attn-4")


def write_model(folder: Path, size: str) -> Path:
    """A random Qwen3 in bfloat16; the tiny one in float32, for CPUs."""
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "tie_word_embeddings")
    shape: dict[str, Any] = dict(zip(names, SIZES[size], strict=True))
    if size == "tiny":
        shape |= {"num_key_value_heads": 1, "head_dim": 32, "vocab_size": 512}
    else:
        shape |= {"num_key_value_heads": KEY_HEADS, "head_dim": HEAD, "vocab_size": VOCABULARY}
    if (folder / "whole").is_file():
        return folder
    made.write_model(folder, shape, "float32" if size == "tiny" else "bfloat16")
    (folder / "whole").touch()  # a killed one would have a config and half of its weights
    return folder


def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def seconds(action: Callable[[], object], repeats: int = 3) -> float:
    """Median of ``repeats``, after one that is not counted."""
    taken = []
    for _ in range(repeats + 1):
        synchronize()
        began = time.perf_counter()
        action()
        synchronize()
        taken.append(time.perf_counter() - began)
    return sorted(taken[1:])[repeats // 2]


def forget_peak() -> None:
    """Begin to count the peak of memory anew."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()


def peak_gib() -> float | None:
    """Most memory that torch held since ``forget_peak``; None without a GPU."""
    return round(torch.cuda.max_memory_allocated() / 2**30, 2) if torch.cuda.is_available() else None


def machine() -> dict[str, Any]:
    """Name of the device and versions, for each line."""
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    return {"device": name, "versions": versions}
