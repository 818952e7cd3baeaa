"""Sampling on a GPU: the stage beside a bare ``LLM.generate``, starts of an engine, an 8-bit key-value cache."""

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench import sampling
from bench.gpu.layers import DEVICE
from oapl_core.rollouts.engine import SamplingEngine
from oapl_core.rollouts.requests import Request
from oapl_core.settings.experiment import EngineConfig


def engine_config(at_once: int, length: int, **options: Any) -> EngineConfig:
    """The engine's settings for answers of ``length`` tokens."""
    return EngineConfig(
        max_model_len=length + 128,
        max_num_seqs=at_once,
        kv_cache_gib=0.25,
        gpu_memory_utilization=0.4,
        dtype="bfloat16" if DEVICE.type == "cuda" else "float32",
        enforce_eager=DEVICE.type == "cpu",
        options=options,
    )


def stage(model: Path, at_once: int, tokens: int) -> dict[str, Any]:
    """The stage's tokens a second beside a bare engine's, with and without log-probs; best of several turns."""
    draw = random.Random(0)
    prompts = [[draw.randrange(3, 300) for _ in range(draw.randint(15, 60))] for _ in range(max(2, at_once // 8))]
    with tempfile.TemporaryDirectory() as folder:
        found = sampling.measure(model, prompts, tokens, engine_config(at_once, tokens + 64), Path(folder))
    speeds = {
        name: max(turn["tokens"] / turn["seconds"] for turn in turns)
        for name, turns in found.items()
        if isinstance(turns, list)
    }
    return {
        "at_once": at_once,
        "tokens_per_s": {name: round(speed) for name, speed in speeds.items()},
        "of_bare": round(speeds["stage"] / speeds["bare_without_logprobs"], 3),
        "of_bare_with_logprobs": round(speeds["stage"] / speeds["bare_with_logprobs"], 3),
        "python_ms": found["python_ms"],
    }


def starts(model: Path, folder: Path) -> dict[str, Any]:
    """Seconds by phase of three starts: of a cold cache, of the same folder, and of a copy as the next round has it.

    Each is a process of its own, as a stage is; they share a cache.
    """
    copy = folder / "epoch"
    if not copy.is_dir():
        shutil.copytree(model, copy)
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as cache:
        for name, where in {"cold": model, "again": model, "another folder": copy}.items():
            command = [sys.executable, "-m", "bench.gpu", "one", "start", json.dumps({"model": str(where)})]
            environment = {**os.environ, "VLLM_CACHE_ROOT": cache}
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
            found[name] = json.loads(done.stdout.splitlines()[-1])
    found["of_first"] = round(found["another folder"]["seconds"] / found["cold"]["seconds"], 3)
    return found


def start(model: Path) -> dict[str, Any]:
    """Seconds from the first import to an engine that answers, and by phase."""
    began = time.perf_counter()
    with SamplingEngine(model, engine_config(8, 64)) as engine:
        return {"seconds": round(time.perf_counter() - began, 2), "phases": engine.startup_s}


def cache_of(model: Path, at_once: int, length: int, kv_cache_dtype: str) -> dict[str, Any]:
    """Tokens a second with a key-value cache of a type; answers of random models end at their limit."""
    asked = [Request(f"answer {number}", [5, 6, 7], number, length) for number in range(at_once)]
    options = {} if kv_cache_dtype == "auto" else {"kv_cache_dtype": kv_cache_dtype}
    with SamplingEngine(model, engine_config(at_once, length, **options)) as engine:
        began = time.perf_counter()
        tokens = sum(len(answer.response_ids) for answer in engine.sample(asked, True))
        taken = time.perf_counter() - began
    return {
        "kv_cache_dtype": kv_cache_dtype,
        "at_once": at_once,
        "tokens": tokens,
        "tokens_per_s": round(tokens / taken),
    }
