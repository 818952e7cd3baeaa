"""A run folder with a tiny model and groups whose log-probs that model gave, for tests of the trainer."""

import random
import subprocess
import sys
from pathlib import Path
from typing import Any

from oapl_core import tables
from oapl_core.devices import visible_gpus
from oapl_core.model_files.model_folder import policy_hash
from oapl_core.run_folder.run import Run
from oapl_core.settings.experiment_file import parse_experiment
from tests.core.training.forked_training import Forked

BETA1, BETA2 = 1.0, 0.05
# A larger eps than the default: where a gradient is almost 0, Adam would turn its rounding into whole steps.
TRAINING = {
    "dtype": "float32",
    "batch_size": 10,
    "tokens_per_micro_batch": 100,
    "learning_rate": 1e-3,
    "logprob_chunk": 32,
    "adam_eps": 1e-5,
}


def make_run(
    folder: Path, model: Path, epochs: int = 3, objective: dict[str, Any] | None = None, **training: Any
) -> Run:
    """A run of one round that starts from ``model``; ``objective`` takes the place of OAPL's settings."""
    values = {
        "name": "tiny",
        "runs_dir": folder,
        "model": model,
        "problems": dict.fromkeys(("train", "validation", "heldout"), folder / "unused.jsonl"),
        "rounds": [{"epochs": epochs}],
        "training": TRAINING | training,
        "objective": objective or {"value_temperature": BETA1, "regression_temperature": BETA2},
    }
    return Run.create(parse_experiment(values, "test"))


def made_groups(model: Path, groups: int = 6, size: int = 4, seed: int = 0) -> list[dict[str, Any]]:
    """Rows of tables.GROUPS: random tokens of random lengths, scored by plain transformers code."""
    rng = random.Random(seed)
    identity, rows = policy_hash(model), []
    for group in range(groups):
        prompt = [rng.randrange(3, 300) for _ in range(rng.randrange(2, 9))]
        for i in range(size):
            row = {
                "rollout_id": f"r{group}-{i}",
                "problem_id": f"p{group}",
                "group": group,
                "policy_hash": identity,
                "prompt_ids": prompt,
                "response_ids": [rng.randrange(3, 300) for _ in range(rng.randrange(1, 24))],
                "behavior_logprobs": [],
                "temperature": 1.0,
                "reward": float(i <= group % size),
            }
            rows.append(row)
    for row, logprobs in zip(rows, plain_logprobs(model, rows), strict=True):
        row["behavior_logprobs"] = logprobs
    return rows


def plain_logprobs(model_dir: Path, rows: list[dict[str, Any]], **loading: Any) -> list[list[float]]:
    """log_softmax of each whole row by itself: the textbook's way."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(model_dir, **loading)
    found = []
    for row in rows:
        ids = torch.tensor([row["prompt_ids"] + row["response_ids"]])
        with torch.no_grad():
            logprobs = model(ids).logits[0, :-1].double().log_softmax(1).gather(1, ids[0, 1:, None])[:, 0]
        found.append(logprobs[len(row["prompt_ids"]) - 1 :].tolist())
    return found


def plain_entropies(model_dir: Path, rows: list[dict[str, Any]], temperature: float = 1.0) -> list[list[float]]:
    """-sum_v p_v ln p_v at each response token of each row: NumPy over the whole softmax, float64."""
    import numpy as np
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(model_dir)
    found = []
    for row in rows:
        with torch.no_grad():
            logits_TV = model(torch.tensor([row["prompt_ids"] + row["response_ids"]])).logits[0].double().numpy()
        logits_TV = logits_TV[len(row["prompt_ids"]) - 1 : -1] / temperature
        softmax_TV = np.exp(logits_TV - logits_TV.max(1, keepdims=True))
        softmax_TV /= softmax_TV.sum(1, keepdims=True)
        found.append((-softmax_TV * np.log(softmax_TV)).sum(1).tolist())
    return found


def write_groups(run: Run, rows: list[dict[str, Any]], number: int = 0) -> None:
    """Write the groups file of a round; rows that do not say it are correct from a reward of 1 on."""
    judged = [{"correct": tables.is_correct(row["reward"]), **row} for row in rows]
    with run.writing(run.groups(number), {}, {}) as draft:
        draft.rows = tables.write_table(draft.path, tables.GROUPS, judged)


def train_command(run: Run, number: int = 0) -> list[str]:
    """The verb, as a process of its own."""
    return [sys.executable, "-m", "oapl_core.training.train", str(run.root), "--round", str(number)]


def train_in_a_process(run: Run, number: int = 0) -> str:
    """Train a round to its end; returns what was printed.

    The process is forked from one that has imported DeepSpeed, unless it is to compile, or to use a GPU.
    """
    if run.config.training.compile or visible_gpus():
        result = subprocess.run(train_command(run, number), capture_output=True, text=True)
        code, said, errors = result.returncode, result.stdout, result.stderr
    else:
        process = Forked(run, number)
        said, errors = process.communicate()
        code = process.wait()
    assert code == 0, said + errors
    return said
