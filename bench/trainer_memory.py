"""What the trainer's peak memory depends on: ``python -m bench.trainer_memory``.

Optimiser steps of a 7M-parameter model in plain torch, float32, each line in a process of its own: token budgets, data
sets and longest answers. The peak is what the process grew by after model, gradients and Adam's state were there.
"""

import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from oapl_core.model_files.model_folder import policy_hash
from oapl_core.training.examples import read_examples
from oapl_core.training.model.logprobs import Policy
from oapl_core.training.steps import Trainer
from tests.core.training.made_round import make_run, write_groups
from tests.core.training.plain_engine import PlainEngine

VOCABULARY = 8000
CASES = [  # token budget, rollouts, tokens of an answer, groups with answers four times as long
    (2048, 256, 256, 0),
    (4096, 256, 256, 0),
    (8192, 256, 256, 0),
    (16384, 256, 256, 0),
    (4096, 2048, 256, 0),
    (4096, 16384, 256, 0),
    (4096, 256, 256, 1),
    (4096, 256, 256, 8),
]


def write_model(folder: Path) -> Path:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=64,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        dtype="float32",
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    return folder


def measure(budget: int, rollouts: int, tokens: int, long_groups: int) -> None:
    """Print the peak in MB of three steps over 64 sequences."""
    from transformers import AutoModelForCausalLM

    draw = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as name:
        model_dir = write_model(Path(name) / "model")
        run = make_run(Path(name), model_dir, tokens_per_micro_batch=budget, batch_size=64)
        identity = policy_hash(model_dir)

        def rows() -> Iterator[dict[str, Any]]:
            for i in range(rollouts):
                size = tokens * (4 if i // 8 < long_groups else 1)
                yield {
                    "rollout_id": f"r{i}",
                    "problem_id": f"p{i // 8}",
                    "group": i // 8,
                    "policy_hash": identity,
                    "prompt_ids": [1, 2, 3],
                    "response_ids": draw.integers(0, VOCABULARY, size).tolist(),
                    "behavior_logprobs": [-9.0] * size,
                    "temperature": 1.0,
                    "reward": float(i % 2),
                }

        write_groups(run, rows())  # type: ignore[arg-type]
        examples = read_examples(run.groups(0), identity, model_dir)
        policy = Policy(AutoModelForCausalLM.from_pretrained(model_dir))
        engine = PlainEngine(policy, run.config.training)
        trainer = Trainer(
            engine=engine,
            objective=run.config.objective.loaded("behavior"),
            examples=examples,
            training=run.config.training,
            seed=0,
            round_number=0,
            epochs=1,
        )
        trainer.step([rollouts - 1], examples.lengths, 0.0)  # Adam's state
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for first in range(0, 192, 64):
            trainer.step(range(first, first + 64), examples.lengths, 0.0)
            engine.gradients.clear()
        print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)


def main() -> None:
    if len(sys.argv) > 1:
        measure(*map(int, sys.argv[1:]))
        return
    for case in CASES:
        command = [sys.executable, "-m", "bench.trainer_memory", *map(str, case)]
        peak = float(subprocess.check_output(command, text=True).splitlines()[-1])
        budget, rollouts, tokens, long_groups = case
        print(
            f"budget {budget:6,}  {rollouts:6,} rollouts of {tokens} tokens, {8 * long_groups:3} of {4 * tokens:,}: "
            f"{peak:6.0f} MB, {1024 * peak / budget:5.0f} KB a token of the budget",
            flush=True,
        )


if __name__ == "__main__":
    main()
