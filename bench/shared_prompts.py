"""A trainer's step with prompts computed once per group: ``python -m bench.shared_prompts``.

The model of bench/trainer.py, groups of 8 answers whose mean length is a part or a multiple of their prompt's, float32,
DeepSpeed. Four ways in one process, in turn: padded rows, packed rows with torch's SDPA (what `training.packing = "on"`
does on a CPU), packed rows whose sequences are computed one by one (what GPUs do), and shared prompts. CPU seconds of
one thread, which a machine that does other work does not change much. Prints a JSON line for each shape: medians, and
the median of each round's ratio to shared prompts, with its quartiles.
"""

import argparse
import json
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.trainer import SHAPE, write_model

GROUP, BUDGET, RATE = 8, 4096, 1e-7
SHAPES = {
    "4:1": (800, 200),
    "2:1": (600, 300),
    "1:1": (400, 400),
    "1:2": (300, 600),
    "1:4": (200, 800),
    "1:10": (100, 1000),
}
"""Tokens of a prompt, and of an answer on average."""
WAYS: dict[str, dict[str, Any]] = {
    "padded": {"packing": "off"},
    "packed": {"packing": "on"},
    "one by one": {"packing": "on"},
    "shared": {"share_prompts": "on"},
}


def made_rows(model: Path, groups: int, prompt: int, answer: int) -> list[dict[str, Any]]:
    """Rows of tables.GROUPS with random tokens; answers of half to one and a half times their mean length."""
    from oapl_core.model_files.model_folder import policy_hash

    draw, identity = random.Random(1), policy_hash(model)
    ids = [draw.sample(range(2, SHAPE["vocab_size"]), prompt) for _ in range(groups)]
    lengths = [answer // 2 + answer * i // (GROUP - 1) for i in range(GROUP)]
    return [
        {
            "rollout_id": f"r{group}-{i}",
            "problem_id": f"p{group}",
            "group": group,
            "policy_hash": identity,
            "prompt_ids": ids[group],
            "response_ids": [draw.randrange(2, SHAPE["vocab_size"]) for _ in range(length)],
            "behavior_logprobs": [-8.3 + draw.gauss(0, 0.1) for _ in range(length)],
            "temperature": 1.0,
            "reward": float(draw.random() < 0.4),
        }
        for group in range(groups)
        for i, length in enumerate(lengths)
    ]


def trainer_of(folder: Path, rows: list[dict[str, Any]], way: str) -> Any:
    """One of the WAYS, as the trainer starts it."""
    from oapl_core.model_files.model_folder import policy_hash
    from oapl_core.training.examples import read_examples
    from oapl_core.training.job import make_job
    from oapl_core.training.layouts.attention import give
    from oapl_core.training.model.loading import load
    from oapl_core.training.steps import Trainer
    from tests.core.training.made_round import make_run, write_groups

    model = folder / "model"
    settings = {"tokens_per_micro_batch": BUDGET, "logprob_chunk": 1024, "batch_size": len(rows), **WAYS[way]}
    run = make_run(Path(tempfile.mkdtemp(dir=folder)), model, **settings)
    write_groups(run, rows)
    job, examples = make_job(run, 0), read_examples(run.groups(0), policy_hash(model), model)
    engine = load(job, examples).engine
    if way == "one by one":
        give(engine.policy.model)
    return Trainer(engine, job.objective, examples, job.training, seed=0, round_number=0, epochs=1)


def measured(folder: Path, name: str, groups: int, rounds: int) -> dict[str, Any]:
    """Every way's step over the same rows, in turn, after one that warms up and whose loss must be the same."""
    prompt, answer = SHAPES[name]
    rows = made_rows(folder / "model", groups, prompt, answer)
    trainers = {way: trainer_of(folder, rows, way) for way in WAYS}
    batch, seconds, first = list(range(len(rows))), {way: list[float]() for way in WAYS}, {}
    for number in range(rounds + 1):
        for way, trainer in trainers.items():
            began = time.process_time()
            metrics = trainer.step(batch, trainer.examples.lengths, RATE)
            if number:
                seconds[way].append(time.process_time() - began)
            else:
                first[way] = metrics
    losses = [metrics["loss"] for metrics in first.values()]
    assert max(losses) - min(losses) <= 1e-5 * abs(losses[0]), losses
    ratios = {way: [a / b for a, b in zip(seconds[way], seconds["shared"], strict=True)] for way in WAYS}
    return {
        "prompt:answer": name,
        "tokens": first["shared"]["tokens"],
        "saved": round(first["shared"]["shared_tokens"] / first["shared"]["tokens"], 3),
        "seconds": {way: round(statistics.median(times), 2) for way, times in seconds.items()},
        "times shared": {
            way: [round(x, 2) for x in statistics.quantiles(found, n=4)]
            for way, found in ratios.items()
            if way != "shared"
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--groups", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        write_model(Path(name) / "model", **SHAPE)
        for shape in options.shapes:
            print(json.dumps(measured(Path(name), shape, options.groups, options.rounds)), flush=True)


if __name__ == "__main__":
    main()
