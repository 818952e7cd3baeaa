"""A small run of sums whose rounds have rows with the words of others, and worked answers to some of its problems."""

import json
from pathlib import Path
from typing import Any

from oapl_core.problems.prepare import prepare
from oapl_core.run_folder.run import Run
from oapl_core.settings.experiment_file import parse_experiment

PROBLEMS = 6
GROUP = 4
MOST_TOKENS = 40


def worked(number: int, text: str = "") -> dict[str, Any]:
    """A demonstration of one of the training problems."""
    return {"problem_id": f"sum-{number}", "solution": f"{text}The answer is \\boxed{{{2 * number + 1}}}."}


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def guided_run(folder: Path, model: Path, rows: dict[str, Any], name: str = "guided", **changes: Any) -> Run:
    """A run whose problems and prompts are made; its first round has the table ``rows``."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, first, count in (("train", 0, PROBLEMS), ("validation", 90, 1), ("heldout", 91, 1)):
        problems = [
            {
                "problem_id": f"sum-{i}",
                "kind": "math",
                "statement": f"What is {i} + {i + 1}?",
                "answer": str(2 * i + 1),
            }
            for i in range(first, first + count)
        ]
        write_rows(folder / f"{split}.jsonl", problems)
    values: dict[str, Any] = {
        "name": name,
        "seed": 3,
        "runs_dir": folder,
        "model": model,
        "problems": {split: folder / f"{split}.jsonl" for split in ("train", "validation", "heldout")}
        | {"max_prompt_tokens": 128},
        "evaluation": {"max_tokens": MOST_TOKENS},
        "engine": {"max_model_len": 512, "max_num_seqs": 64, "kv_cache_gib": 0.25},
        "sampling": {"group_size": GROUP, "max_tokens": MOST_TOKENS, "problems_per_part": 2, "flush_s": 0.05},
        "objective": {"name": "luffy"},
        "rounds": [{"rows": rows}],
    }
    for key, change in changes.items():
        values[key] = values[key] | change if isinstance(values.get(key), dict) else change
    run = Run.create(parse_experiment(values, "test"))
    prepare(run)
    return run
