"""Small runs and foreign rows for the tests of the exchange."""

import json
from pathlib import Path
from typing import Any

from oapl_core import tables
from oapl_core.model_files.model_folder import policy_hash
from oapl_core.run_folder.run import Run
from oapl_core.settings.experiment_file import parse_experiment
from tests.core.groups.test_build import put, rollout, verdict

Row = dict[str, Any]

PROBLEMS: list[Row] = [
    {
        "problem_id": "sum",
        "kind": "stdin",
        "statement": "Print the sum.",
        "structure": "s",
        "tests": [{"input": "1 2\n", "output": "3\n"}, {"input": "4 4\n", "output": "8\n"}],
    },
    {
        "problem_id": "most",
        "kind": "function",
        "statement": "Return the largest.",
        "entry_point": "most",
        "starter_code": "def most(a, b):",
        "tests": [{"input": "[[1, 2], 0]", "output": "2"}],
    },
    {"problem_id": "square", "kind": "math", "statement": "2 squared?", "answer": "4"},
]
REWARDS: dict[str, list[float | None]] = {"sum": [1.0, 0.0, 0.0], "most": [1.0, 1.0, 0.0], "square": [0.0, None, 1.0]}


def make_run(folder: Path, model: Path, name: str = "a", **changes: Any) -> Run:
    """A run of one round over PROBLEMS; nothing is written but its folder and the problem sets."""
    for split in ("train", "validation", "heldout"):
        rows = (
            PROBLEMS
            if split == "train"
            else [PROBLEMS[2] | {"problem_id": split, "statement": f"2 squared, of {split}?"}]
        )
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    values = {
        "name": name,
        "runs_dir": folder,
        "model": model,
        "rounds": [{}],
        "problems": {split: folder / f"{split}.jsonl" for split in ("train", "validation", "heldout")},
        "sampling": {"group_size": 3, "problems_per_part": 2},
        **changes,
    }
    return Run.create(parse_experiment(values, "test"))


def sample(run: Run) -> None:
    """Rollouts and verdicts of PROBLEMS, as if sampled and judged; ids that re-encoding would change."""
    identity = policy_hash(run.base_model())
    for part, problems in enumerate((["sum", "most"], ["square"])):
        rows = [
            rollout(
                p,
                i,
                policy_hash=identity,
                response_ids=[70 + i, 71, 72],
                logprobs=[-0.1, -1 / 3, -2.5],
                text=f"answer {i} to {p}: « ü »",
                finish_reason="length" if i == 2 else "stop",
            )
            for p in problems
            for i in range(3)
        ]
        judged = [verdict(p, i, REWARDS[p][i]) for p in problems for i in range(3)]
        put(run, run.rollouts(0) / f"part-{part:05d}.parquet", tables.ROLLOUTS, rows)
        put(run, run.verdicts(0) / f"part-{part:05d}.parquet", tables.VERDICTS, judged)


def foreign(prompt: str, rewards: list[float], **changes: Any) -> list[Row]:
    """The rows of one group as the authors' data sets have them."""
    return [
        {
            "data_source": "them",
            "prompt": [{"role": "user", "content": prompt}],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": "4"},
            "extra_info": {"split": "train", "index": i},
            "response": f"{prompt} answered {i}",
            "precomputed_reward": reward,
            "response_rewards": rewards,
            **changes,
        }
        for i, reward in enumerate(rewards)
    ]


def write_jsonl(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows))
    return path


def read_parts(run: Run, kind: str) -> list[Row]:
    """Every row of the round's rollouts or verdicts."""
    folder, fields = (run.rollouts(0), tables.ROLLOUTS) if kind == "rollouts" else (run.verdicts(0), tables.VERDICTS)
    return [row for p in sorted(folder.glob("part-*")) for row in tables.read_table(p, fields).to_pylist()]


def left_out(run: Run) -> dict[str, int]:
    """Rows that the import counted as unusable, by reason."""
    found: dict[str, int] = run.ledger.artifacts()["round_00/2_verdicts/part-00000.parquet"].details["left_out"]
    return found
