"""One optimiser step of ours against other trainers': ``python -m bench.trainer [--authors DIR] [--trl DIR]``.

Same random model, same rollouts (lengths log-normal, as reasoning answers are), same objective where the other trainer
can be given one, float32, ``--threads``. Every contender runs in a process of its own, in turn, several times. Prints
one JSON line for each, then the ratios. Useful tokens are those of prompts and answers; padding and further passes
count as time, not as tokens. CPU seconds are given beside wall time: on a machine that does other work they are the
ones to compare (with one thread, which never waits for another). ``--utilisation`` prints the share of a measured
matrix product's speed for models of 1M to 100M.

Other trainers are never part of this repository: ``trainer_peers.py`` says what their folders must hold; one that is
not given is left out, with a line that says so. Ours must work: if it fails, so does the command.
"""

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from oapl_core.model_files.model_folder import policy_hash

CONTENDERS = ("ours", "hf8", "hf1", "trl8", "authors", "authors_update")
SHAPE = {"hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 4, "vocab_size": 4096}
SEQUENCES, MEDIAN, SPREAD, LONGEST, GROUP = 32, 200, 0.9, 1536, 8
BUDGET = 2048
SIZES = {  # millions of weights without embeddings: hidden size, layers, tokens of a step
    1: (128, 6, 16384),
    3: (256, 4, 16384),
    10: (384, 6, 8192),
    30: (640, 6, 4096),
    100: (1024, 8, 8192),
}

Step = Callable[[], float]
"""Does one optimiser step over every rollout and returns its loss."""


def write_model(folder: Path, **shape: int) -> Path:
    """A random Qwen3 model without a tokenizer."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    hidden = shape["hidden_size"]
    config = Qwen3Config(
        **shape,
        num_attention_heads=hidden // 32,
        num_key_value_heads=hidden // 64,
        head_dim=32,
        max_position_embeddings=40960,
        tie_word_embeddings=True,
        dtype="float32",
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
    )
    torch.manual_seed(0)
    Qwen3ForCausalLM(config).save_pretrained(folder)
    return folder


def make_rollouts(model: Path, sequences: int = SEQUENCES, length: int | None = None) -> list[dict[str, Any]]:
    """Rows of tables.GROUPS with random tokens; ``length`` fixes that of the answers, else they are log-normal."""
    rng, identity, rows = random.Random(1), policy_hash(model), []
    for group in range(max(1, sequences // GROUP)):
        prompt = [rng.randrange(2, 4096) for _ in range(rng.randrange(60, 200) if length is None else 1)]
        for i in range(min(GROUP, sequences)):
            count = length or min(LONGEST, max(16, round(rng.lognormvariate(0, SPREAD) * MEDIAN)))
            rows.append(
                {
                    "rollout_id": f"r{group}-{i}",
                    "problem_id": f"p{group}",
                    "group": group,
                    "policy_hash": identity,
                    "prompt_ids": prompt,
                    "response_ids": [rng.randrange(2, 4096) for _ in range(count)],
                    "behavior_logprobs": [-8.3 + rng.gauss(0, 0.1) for _ in range(count)],
                    "temperature": 1.0,
                    "reward": float(rng.random() < 0.4),
                }
            )
    return rows


def advantages(rows: list[dict[str, Any]], value_temperature: float) -> list[float]:
    """r - V of each row, in plain numpy."""
    import numpy as np

    found = []
    for row in rows:
        rewards = np.array([other["reward"] for other in rows if other["group"] == row["group"]])
        found.append(row["reward"] - value_temperature * np.log(np.mean(np.exp(rewards / value_temperature))))
    return found


def ours(folder: Path, rows: list[dict[str, Any]], budget: int = BUDGET) -> tuple[Step, Any]:
    """The step of oapl_core.training with DeepSpeed, and its trainer."""
    from oapl_core.training.engine import TrainingEngine
    from oapl_core.training.examples import read_examples
    from oapl_core.training.model.checkpoint import load_model
    from oapl_core.training.model.logprobs import Policy
    from oapl_core.training.steps import Trainer
    from tests.core.training.made_round import make_run, write_groups

    model_dir = folder / "model"
    run = make_run(Path(tempfile.mkdtemp(dir=folder)), model_dir, tokens_per_micro_batch=budget, logprob_chunk=1024)
    write_groups(run, rows)
    examples = read_examples(run.groups(0), policy_hash(model_dir), model_dir)
    training = run.config.training
    model = load_model(model_dir).model
    engine = TrainingEngine(Policy(model, 1.0, training.logprob_chunk), training)
    trainer = Trainer(
        engine=engine,
        objective=run.config.objective.loaded("behavior"),
        examples=examples,
        training=training,
        seed=0,
        round_number=0,
        epochs=1,
    )
    batch = list(range(len(rows)))
    return lambda: float(trainer.step(batch, examples.lengths, RATE)["loss"]), trainer


RATE = 1e-7
"""So small that every step of the measurement does the same work."""


def contender(name: str, folder: Path, peers: dict[str, Any]) -> Step:
    """The step of ``name``; imports what it needs only here. ``peers`` has our token budget too."""
    rows = json.loads((folder / "rollouts.json").read_text())
    if name == "ours":
        return ours(folder, rows, int(peers["budget"]))[0]
    from bench import trainer_peers

    return trainer_peers.make(name, folder / "model", rows, peers, RATE)


def measure(name: str, folder: Path, steps: int, threads: int, peers: dict[str, Any]) -> dict[str, Any]:
    """Warm up with a step, whose loss is kept, then time ``steps``."""
    import torch

    torch.set_num_threads(threads)
    rows = json.loads((folder / "rollouts.json").read_text())
    step = contender(name, folder, peers)
    loss, times, cpu = step(), [], []
    for _ in range(steps):
        began, cpu_began = time.perf_counter(), time.process_time()
        step()
        times.append(time.perf_counter() - began)
        cpu.append(time.process_time() - cpu_began)
    tokens = sum(len(row["prompt_ids"]) + len(row["response_ids"]) for row in rows)
    return {
        "name": name,
        "tokens": tokens,
        "loss": loss,
        "seconds": [round(t, 3) for t in times],
        "tokens_per_s": round(tokens / min(times), 1),
        "tokens_per_cpu_s": round(tokens / min(cpu), 1),
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


def utilisation(size: int, steps: int) -> None:
    """Model-FLOPs utilisation of a step at one model size, against the best of two matrix products on two threads."""
    import torch

    from oapl_core.training.speed import ModelFlops, matmul_tflops

    torch.set_num_threads(2)
    hidden, layers, tokens = SIZES[size]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shape = {"hidden_size": hidden, "intermediate_size": 4 * hidden, "num_hidden_layers": layers}
        write_model(folder / "model", **shape, vocab_size=4096)
        rows = make_rollouts(folder / "model", sequences=tokens // 512, length=511)
        step, trainer = ours(folder, rows)
        flops = ModelFlops.of(trainer.engine._engine.module.model)
        step()
        times = []
        for _ in range(steps):
            began = time.perf_counter()
            step()
            times.append(time.perf_counter() - began)
        trainer.engine.close()
    peaks = {n: matmul_tflops(torch.float32, n, 1.0) for n in (1024, 2048)}
    need, peak = flops(len(rows) * 512, len(rows) * 511, len(rows) * 512**2), max(peaks.values())
    seconds = min(times)
    weights = round(flops.token / 6e6, 1)
    print(
        json.dumps(
            {
                "weights_m": weights,
                "tokens": len(rows) * 512,
                "seconds": round(seconds, 2),
                "tokens_per_s": round(len(rows) * 512 / seconds),
                "gflops": round(need / seconds / 1e9, 1),
                "peak_gflops": {n: round(p * 1e3, 1) for n, p in peaks.items()},
                "mfu": round(need / seconds / peak / 1e12, 3),
            }
        ),
        flush=True,
    )


def failure(code: int, errors: str) -> str:
    """Why a contender's process failed: the last line that it wrote, or the signal that ended it."""
    if code < 0:
        return f"killed by signal {-code}"
    return (errors.strip().splitlines() or [f"exit code {code} without a word"])[-1]


def compare(wanted: list[str], folder: Path, options: argparse.Namespace) -> None:
    """Each contender in its own process, in turn, ``--rounds`` times; then speeds as ratios to ours."""
    write_model(folder / "model", **SHAPE)
    (folder / "rollouts.json").write_text(json.dumps(make_rollouts(folder / "model")))
    best: dict[str, dict[str, Any]] = {}
    environment = {**os.environ, "OMP_NUM_THREADS": str(options.threads), "CUDA_VISIBLE_DEVICES": ""}
    given = ("authors", "site", "trl", "budget")
    peers = [f"--{name}={getattr(options, name)}" for name in given if getattr(options, name)]
    for _ in range(options.rounds):
        for name in wanted:
            command = [sys.executable, "-m", "bench.trainer", "--only", name, "--folder", str(folder), *peers]
            command += [f"--steps={options.steps}", f"--threads={options.threads}"]
            done = subprocess.run(command, capture_output=True, text=True, env=environment)
            if done.returncode:
                why = failure(done.returncode, done.stderr)
                if name == "ours":  # without it no ratio means anything
                    raise SystemExit(f"ours: {why}")
                print(f"{name}: left out: {why}", flush=True)
                continue
            found = json.loads(done.stdout.splitlines()[-1])
            print(json.dumps(found), flush=True)
            if name not in best or found["tokens_per_s"] > best[name]["tokens_per_s"]:
                best[name] = found
    for name, found in best.items():
        if name != "ours" and "ours" in best:
            wall, cpu = (best["ours"][key] / found[key] for key in ("tokens_per_s", "tokens_per_cpu_s"))
            print(f"ours / {name}: {wall:.2f} by wall time, {cpu:.2f} by CPU time")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--authors", default=os.environ.get("OAPL_BENCH_AUTHORS"))
    parser.add_argument("--site", default=os.environ.get("OAPL_BENCH_SITE"))
    parser.add_argument("--trl", default=os.environ.get("OAPL_BENCH_TRL"))
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=list(CONTENDERS))
    parser.add_argument("--budget", type=int, default=BUDGET, help="tokens of our micro-batches")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--utilisation", nargs="*", type=int, choices=list(SIZES))
    parser.add_argument("--only", choices=CONTENDERS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        peers = {name: getattr(options, name) for name in ("authors", "site", "trl", "budget")}
        print(json.dumps(measure(options.only, options.folder, options.steps, options.threads, peers)))
    elif options.utilisation is not None and len(options.utilisation) == 1:
        utilisation(options.utilisation[0], options.steps)
    elif options.utilisation is not None:
        for size in options.utilisation or SIZES:  # DeepSpeed keeps what it made for as long as the process lives
            again = [
                sys.executable,
                "-m",
                "bench.trainer",
                f"--steps={options.steps}",
                "--utilisation",
                str(size),
            ]
            subprocess.run(again, check=True)
    else:
        with tempfile.TemporaryDirectory() as folder:
            compare(options.contenders, Path(folder), options)


if __name__ == "__main__":
    main()
