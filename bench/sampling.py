"""Sampling through the rollouts stage against a bare ``LLM.generate``: ``python -m bench.sampling``.

Same prompts, lengths, engine settings and process; the bare engine is measured with and without log-probs, the stage
always has them, gives each request its own seed and writes Parquet. Prints one JSON line. The model is random and
hardly ever ends by itself.
"""

import argparse
import json
import random
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

from oapl_core.rollouts.engine import SamplingEngine
from oapl_core.rollouts.generate import generate
from oapl_core.run_folder.run import Run
from oapl_core.settings.experiment import EngineConfig
from tests.sampling_run import make_run
from tests.tiny_model import write_tiny_model

TOKENS, GROUP, REPEATS = 25, 8, 3
CONFIG = EngineConfig(max_model_len=256, max_num_seqs=512, kv_cache_gib=0.5)


def bare(model: Path, prompts: list[list[int]]) -> dict[str, list[float]]:
    """Tokens per second of ``LLM.generate``, G answers to each prompt, once for each repeat."""
    from vllm import LLM, SamplingParams

    llm = LLM(
        model=str(model),
        dtype="float32",
        max_model_len=CONFIG.max_model_len,
        max_num_seqs=CONFIG.max_num_seqs,
        enforce_eager=True,
        generation_config="vllm",
        kv_cache_memory_bytes=int(CONFIG.kv_cache_gib * 2**30),
        block_size=32,
        enable_chunked_prefill=False,
        max_num_batched_tokens=8192,
        disable_log_stats=True,
    )
    asked = [{"prompt_token_ids": ids} for ids in prompts for _ in range(GROUP)]
    speeds: dict[str, list[float]] = {"with_logprobs": [], "without_logprobs": []}
    for name in [*speeds] * REPEATS:
        logprobs = 0 if name == "with_logprobs" else None
        parameters = SamplingParams(temperature=1.0, top_p=1.0, max_tokens=TOKENS, logprobs=logprobs)
        llm.reset_prefix_cache()
        start = time.monotonic()
        outputs = llm.generate(asked, parameters, use_tqdm=False)
        speeds[name].append(sum(len(o.outputs[0].token_ids) for o in outputs) / (time.monotonic() - start))
    return speeds


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


def staged(run: Run, engine: SamplingEngine) -> float:
    """Tokens per second of the stage on a running engine, the writing of its parts included."""
    start = time.monotonic()
    generate(run, 0, lambda _model, _config: Started(engine))
    seconds = time.monotonic() - start
    parts = [entry for name, entry in run.ledger.artifacts().items() if "1_rollouts" in name]
    return sum(float(part.details["response_tokens"]) for part in parts) / seconds


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=4800)
    asked = parser.parse_args().requests
    draw = random.Random(0)
    prompts = [[draw.randrange(3, 300) for _ in range(draw.randint(15, 60))] for _ in range(asked // GROUP)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = write_tiny_model(folder / "model", hidden_size=128, layers=3, vocabulary=832)
        sets = {"train": prompts, "validation": [[5]], "heldout": [[5]]}
        sampling = {"group_size": GROUP, "max_tokens": TOKENS, "problems_per_part": 128}
        settings = {"sampling": sampling, "engine": CONFIG.model_dump()}
        runs = [make_run(folder / str(i), model, sets, **settings) for i in range(REPEATS)]
        with SamplingEngine(model, CONFIG) as engine:
            ours = [staged(run, engine) for run in runs]
            startup = engine.startup_s
        found = {"requests": asked, "stage": ours, "bare": bare(model, prompts), "startup_s": startup}
        print(json.dumps(found | {"peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10}))


if __name__ == "__main__":
    main()
