"""Sampling through the rollouts stage against a bare ``LLM.generate``: ``python -m bench.sampling``.

    --requests N, --tokens N      answers (4,800) and the longest one's tokens (25)
    --model FOLDER                a real model instead of a random Qwen3 that hardly ever ends by itself (on GPUs of
                                  Qwen3-0.6B's shape)
    --problems FILE.parquet       its prompts: statements of a problem set
    --dtype, --at-once N          of both engines: float32 or bfloat16, requests decoded at once (512)
    --share S                     of a GPU's memory, for each of the two engines (0.4)

Same prompts, lengths, engine settings and process, in turns; the bare engine is measured with and without log-probs,
the stage always has them, gives each request its own seed, hashes the weights and writes Parquet. Prints one JSON line:
of each turn tokens, seconds and CPU seconds, which tell less of what else the machine does. Where vLLM's core is in
this process, also milliseconds of a step that Python takes around the model, in the core and in front of it, with and
without log-probs.
"""

import argparse
import json
import random
import resource
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from oapl_core.devices import listed_gpus
from oapl_core.rollouts.engine import SamplingEngine
from oapl_core.rollouts.generate import generate
from oapl_core.rollouts.requests import Request
from oapl_core.run_folder.run import Run
from oapl_core.settings.experiment import EngineConfig
from oapl_extras.prove.made import LARGE, write_model
from tests.sampling_run import make_run
from tests.tiny_model import write_tiny_model

GROUP, REPEATS = 8, 3


def bare(model: Path, config: EngineConfig, engine: SamplingEngine) -> Any:
    """vLLM with the engine options of ``engine``, none of its code."""
    from vllm import LLM

    of_device: dict[str, Any] = {
        "enforce_eager": True,
        "kv_cache_memory_bytes": int(config.kv_cache_gib * 2**30),
        "block_size": 32,
        "enable_chunked_prefill": False,
        "max_num_batched_tokens": 8192,
    }
    if not engine._on_cpu:
        captured = engine._engine.vllm_config.compilation_config.max_cudagraph_capture_size
        of_device = {
            "gpu_memory_utilization": config.gpu_memory_utilization,
            "compilation_config": {"max_cudagraph_capture_size": captured},
        }
    return LLM(
        model=str(model),
        dtype=config.dtype,
        max_model_len=config.max_model_len,
        max_num_seqs=config.max_num_seqs,
        generation_config="vllm",
        disable_log_stats=True,
        **of_device,
    )


def measured(act: Callable[[], int]) -> dict[str, float]:
    """What ``act`` takes, which returns how many tokens it sampled."""
    cpu, start = time.process_time(), time.monotonic()
    tokens = act()
    return {
        "tokens": tokens,
        "seconds": round(time.monotonic() - start, 3),
        "cpu_seconds": round(time.process_time() - cpu, 3),
    }


def generated(llm: Any, prompts: list[list[int]], tokens: int, logprobs: int | None) -> int:
    """Tokens that ``LLM.generate`` samples, G answers to each prompt."""
    from vllm import SamplingParams

    asked = [{"prompt_token_ids": ids} for ids in prompts for _ in range(GROUP)]
    parameters = SamplingParams(temperature=1.0, top_p=1.0, max_tokens=tokens, logprobs=logprobs)
    llm.reset_prefix_cache()
    return sum(len(o.outputs[0].token_ids) for o in llm.generate(asked, parameters, use_tqdm=False))


def python_ms(engine: SamplingEngine, prompts: list[list[int]], tokens: int) -> dict[str, dict[str, float]]:
    """Milliseconds of a step in the core's Python after the model and in front of it, least of REPEATS; none where the
    core is another process."""
    core = getattr(engine._engine.engine_core, "engine_core", None)
    if core is None:
        return {}
    spent, found = defaultdict[str, float](float), dict[str, dict[str, float]]()
    timed(core.scheduler, "update_from_output", spent, "core")
    timed(engine._engine.output_processor, "process_outputs", spent, "front")
    asked = [Request(f"step {number}", ids, number, tokens) for number, ids in enumerate(prompts)]
    for way, with_logprobs in [("with_logprobs", True), ("without_logprobs", False)] * REPEATS:
        spent.clear()
        assert sum(1 for _ in engine.sample(asked, with_logprobs)) == len(asked)
        own = {part: round(1e3 * spent[part] / spent[f"{part} steps"], 3) for part in ("core", "front")}
        found[way] = min(found.get(way, own), own, key=lambda one: sum(one.values()))
    return found


def timed(owner: Any, name: str, spent: defaultdict[str, float], part: str) -> None:
    """Have a method of ``owner`` count its calls and the CPU seconds of its thread."""
    method = getattr(owner, name)

    def counted(*given: Any, **more: Any) -> Any:
        start = time.thread_time()
        try:
            return method(*given, **more)
        finally:
            spent[part] += time.thread_time() - start
            spent[f"{part} steps"] += 1

    setattr(owner, name, counted)


class Started:
    """Hands a running engine to the stage as if it had just been started."""

    def __init__(self, engine: SamplingEngine) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def __enter__(self) -> SamplingEngine:
        return self._engine

    def __exit__(self, *_: object) -> None:
        self._engine._engine.reset_prefix_cache()


def staged(run: Run, engine: SamplingEngine) -> int:
    """Tokens that the stage samples on a running engine and writes."""
    generate(run, 0, lambda _model, _config: Started(engine))
    parts = [entry for name, entry in run.ledger.artifacts().items() if "1_rollouts" in name]
    return sum(int(part.details["response_tokens"]) for part in parts)


def encoded(model: Path, problems: Path, count: int) -> list[list[int]]:
    """The first statements as a base model is asked them."""
    import polars as pl
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    statements = pl.read_parquet(problems, columns=["statement"]).head(count)["statement"]
    return [tokenizer.encode(f"Question: {statement}\nAnswer:") for statement in statements]


def in_turns(
    engine: SamplingEngine, llm: Any, model: Path, prompts: list[list[int]], tokens: int, folder: Path
) -> dict[str, list[dict[str, float]]]:
    """What each of the three ways took, REPEATS times."""
    sets = {"train": prompts, "validation": [[5]], "heldout": [[5]]}
    sampling = {"group_size": GROUP, "max_tokens": tokens, "problems_per_part": 128}
    settings = {"sampling": sampling, "engine": engine._config.model_dump()}
    found: dict[str, list[dict[str, float]]] = {"stage": [], "bare_with_logprobs": [], "bare_without_logprobs": []}
    for turn in range(REPEATS):
        run = make_run(folder / str(turn), model, sets, **settings)
        found["stage"].append(measured(partial(staged, run, engine)))
        found["bare_with_logprobs"].append(measured(partial(generated, llm, prompts, tokens, 0)))
        found["bare_without_logprobs"].append(measured(partial(generated, llm, prompts, tokens, None)))
    return found


def measure(model: Path, prompts: list[list[int]], tokens: int, config: EngineConfig, folder: Path) -> dict[str, Any]:
    """What each of the three ways took, and steps' milliseconds in Python."""
    with SamplingEngine(model, config) as engine:
        llm = bare(model, config, engine)  # kept: its end would take the process group of both
        found = in_turns(engine, llm, model, prompts, tokens, folder)
        steps = python_ms(engine, (prompts * GROUP)[: config.max_num_seqs], tokens)
    return {**found, "python_ms": steps, "startup_s": engine.startup_s}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=4800)
    parser.add_argument("--tokens", type=int, default=25)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--problems", type=Path)
    parser.add_argument("--dtype")
    parser.add_argument("--at-once", type=int, default=512)
    parser.add_argument("--share", type=float, default=0.4)
    given = parser.parse_args()
    on_gpu = bool(listed_gpus())
    dtype: Any = given.dtype or ("bfloat16" if on_gpu else "float32")
    config = EngineConfig(
        max_model_len=max(256, 128 + given.tokens),
        max_num_seqs=given.at_once,
        kv_cache_gib=0.5,
        gpu_memory_utilization=given.share,
        dtype=dtype,
    )
    draw = random.Random(0)
    count = given.requests // GROUP
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if on_gpu and given.model is None:
            model = write_model(folder / "model", LARGE, dtype)
        else:
            model = given.model or write_tiny_model(folder / "model", hidden_size=128, layers=3, vocabulary=832)
        if given.problems:
            prompts = encoded(model, given.problems, count)
        else:
            prompts = [[draw.randrange(3, 300) for _ in range(draw.randint(15, 60))] for _ in range(count)]
        found = {"requests": given.requests, "dtype": dtype, "at_once": given.at_once}
        found |= measure(model, prompts, given.tokens, config, folder)
        print(json.dumps(found | {"peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10}))


if __name__ == "__main__":
    main()
