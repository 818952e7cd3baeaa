"""vLLM on one GPU: the sampling stage against a bare one, starts by path and by link, a key-value cache in 8 bits."""

import os
import random
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

from bench import sampling
from bench.gpu.shapes import write_model
from oapl_core.rollouts import engine as engine_module
from oapl_core.rollouts.engine import SamplingEngine
from oapl_core.rollouts.engine_cache import stable_path
from oapl_core.rollouts.requests import Request
from oapl_core.settings.experiment import EngineConfig

ROOM = 256
"""Further tokens of the longest request: a run's settings have longer prompts and evaluations."""


def engine_config(options: dict[str, Any]) -> EngineConfig:
    """``options``: ``at_once``; ``prompt`` and ``tokens`` of a request; ``share`` of a GPU's memory; perhaps ``kv``."""
    dtype: Any = "float32" if options["size"] == "tiny" else "bfloat16"
    return EngineConfig(
        max_model_len=options["prompt"] + options["tokens"] + ROOM,
        max_num_seqs=options["at_once"],
        kv_cache_gib=0.25,
        gpu_memory_utilization=options["share"],
        dtype=dtype,
        options={"kv_cache_dtype": options["kv"]} if "kv" in options else {},
    )


def prompts(count: int, length: int) -> list[list[int]]:
    """Random ids; every prompt is another one."""
    draw = random.Random(0)
    return [[draw.randrange(3, 500) for _ in range(length)] for _ in range(count)]


@cache
def _both(model: Path, config: str) -> tuple[SamplingEngine, Any]:
    """The stage's engine and a bare one, which stay until the process ends."""
    settings = EngineConfig.model_validate_json(config)
    engine = SamplingEngine(model, settings).__enter__()
    # through the same link, so that what the first one compiled serves the second one
    return engine, sampling.bare(Path(engine._engine.vllm_config.model_config.model), settings, engine)


def stage(options: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Tokens/s of the stage, and of ``LLM.generate`` with and without log-probs, on ``requests`` at once.

    The engines are those of the largest ``requests``, ``at_once``; ratios are of the fastest turn of each way.
    """
    model = write_model(folder / options["size"], options["size"])
    engine, llm = _both(model, engine_config(options).model_dump_json())
    asked = prompts(max(1, options["requests"] // sampling.GROUP), options["prompt"])
    runs = folder / f"stage-{time.time_ns()}"
    turns = sampling.in_turns(engine, llm, model, asked, options["tokens"], runs)
    speed = {name: max(one["tokens"] / one["seconds"] for one in own) for name, own in turns.items()}
    return {
        "tokens_per_s": round(speed["stage"], 1),
        "all_tokens_per_s": {name: round(value, 1) for name, value in speed.items()},
        # all are decoded at once and as long as each other, so a token of each is a step
        "step_ms": {name: round(1e3 * len(asked) * sampling.GROUP / value, 3) for name, value in speed.items()},
        "ratio": round(speed["stage"] / speed["bare_with_logprobs"], 4),
        "ratio_without_logprobs": round(speed["stage"] / speed["bare_without_logprobs"], 4),
        "turns": turns,
        "startup_s": engine.startup_s,
    }


def start(options: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Seconds of one start of an engine, by phase.

    ``options``: ``through`` is "link" (as the stage) or "path" (of the model's folder); ``first``: into an empty cache,
    else from another folder with the same model, into the cache that the first one left.
    """
    model = write_model(folder / options["size"], options["size"])
    root = folder.resolve() / f"starts-{options['through']}"
    if options["first"]:
        shutil.rmtree(root, ignore_errors=True)
    else:
        model = _copy(model, folder / f"{options['size']}-again")
    caches = {"VLLM_CACHE_ROOT": "vllm", "TRITON_CACHE_DIR": "triton", "TORCHINDUCTOR_CACHE_DIR": "inductor"}
    os.environ.update({name: str(root / own) for name, own in caches.items()})
    with mock.patch.object(engine_module, "stable_path", _own_path if options["through"] == "path" else stable_path):
        began = time.monotonic()
        with SamplingEngine(model, engine_config(options)) as engine:
            took = time.monotonic() - began
    return {"seconds": round(took, 2), "phases_s": engine.startup_s, "had_cache": not options["first"]}


@contextmanager
def _own_path(model_dir: Path, _config: EngineConfig) -> Iterator[Path]:
    yield model_dir


def _copy(model: Path, folder: Path) -> Path:
    """The same model under another path, its weights as hard links."""
    if not folder.exists():
        shutil.copytree(model, folder, copy_function=os.link)
    return folder


def key_values(options: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Milliseconds of a decoding step behind long prompts, whose keys and values a step reads.

    The second time a prompt's keys and values are there; what a step takes is the difference of answers of one token
    and of ``tokens``. ``options``: ``kv`` is vLLM's kv_cache_dtype.
    """
    model = write_model(folder / options["size"], options["size"])
    config = engine_config(options)
    asked = prompts(options["at_once"], options["prompt"])
    taken = {}
    with SamplingEngine(model, config) as engine:

        def sampled(tokens: int) -> float:
            requests = [Request(f"{i}", ids, i, tokens) for i, ids in enumerate(asked)]
            began = time.monotonic()
            found = sum(len(answer.response_ids) for answer in engine.sample(requests))
            assert found <= len(asked) * tokens
            return time.monotonic() - began

        taken["prefill_s"] = sampled(1)
        taken["one_s"] = min(sampled(1) for _ in range(2))
        taken["all_s"] = min(sampled(options["tokens"]) for _ in range(2))
        computes = engine.dtype
    step_s = (taken["all_s"] - taken["one_s"]) / (options["tokens"] - 1)
    return {
        "ms": round(1e3 * step_s, 3),
        "tokens_per_s": round(options["at_once"] / step_s, 1) if step_s > 0 else None,
        "prefill_tokens_per_s": round(options["at_once"] * options["prompt"] / taken["prefill_s"], 1),
        "seconds": {name: round(value, 3) for name, value in taken.items()},
        "computed_in": computes,
        "startup_s": engine.startup_s,
    }
