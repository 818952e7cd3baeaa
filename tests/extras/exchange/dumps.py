"""What verl, prime-rl, open-instruct and TRL write of two groups of three answers, row by row, as their code does.

Keys, their order, nesting and types are those of the writers that oapl_extras/exchange/formats.py names; `prompts` are
what a run's model is really given, so that texts are decoded and ids copied as those trainers would.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

Row = dict[str, Any]
Prompts = Mapping[str, list[int]]
"""Ids that the model was given, by problem."""
REWARDS = (1.0, 0.0, 1.0)


def response(prompt: list[int], sample: int) -> list[int]:
    return [70 + sample, 80 + len(prompt) % 7, 90]


def logprobs(sample: int) -> list[float]:
    return [-0.5 - sample, -1 / 3, -2.5]


def verl(folder: Path, prompts: Prompts, tokenizer: Any, step: int = 3) -> Path:
    """`_dump_generations`: columns of equal length, one JSON object a line; `acc` is an extra of a reward function."""
    rows = [
        {
            "input": tokenizer.decode(ids, skip_special_tokens=True),
            "output": tokenizer.decode(response(ids, sample), skip_special_tokens=True),
            "gts": "4",
            "score": reward,
            "step": step,
            "acc": bool(reward),
            "request_id": f"{name}-{sample}",
        }
        for name, ids in prompts.items()
        for sample, reward in enumerate(REWARDS)
    ]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{step}.jsonl").write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n")
    return folder


def trl(folder: Path, prompts: Prompts, tokenizer: Any, step: int = 5) -> Path:
    """`DataFrame(table).to_parquet`: step, prompt, completion, a column for each reward function, advantage."""
    rows = [
        {
            "step": step,
            "prompt": tokenizer.decode(ids, skip_special_tokens=True),
            "completion": tokenizer.decode(response(ids, sample), skip_special_tokens=True),
            "accuracy_reward": reward,
            "format_reward": 0.5 if sample else float("nan"),
            "advantage": reward - 2 / 3,
        }
        for ids in prompts.values()
        for sample, reward in enumerate(REWARDS)
    ]
    (folder / "completions").mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), folder / "completions" / f"completions_{step:05d}.parquet")
    return folder


def open_instruct(folder: Path, prompts: Prompts, step: int = 7, **changes: Any) -> Path:
    """`asdict(RolloutRecord(...))`, with the metadata file that lies beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "exp_metadata.jsonl").write_text(
        json.dumps({"run_name": "exp", "git_commit": "0", "model_name": "m", "timestamp": "2026-01-01"}) + "\n"
    )
    rows = [
        {
            "step": step,
            "sample_idx": number * len(REWARDS) + sample,
            "prompt_idx": number,
            "prompt_tokens": ids,
            "response_tokens": response(ids, sample),
            "reward": reward,
            "advantage": reward - 2 / 3,
            "finish_reason": "stop",
            "dataset": "gsm8k",
            "ground_truth": ["4"],
            "request_info": {
                "num_calls": 0,
                "timeouts": 0,
                "tool_errors": "",
                "tool_outputs": "",
                "tool_runtimes": 0.0,
                "tool_calleds": False,
                "tool_call_stats": [],
                "rollout_state": {},
            },
            "logprobs": logprobs(sample),
            **changes,
        }
        for number, ids in enumerate(prompts.values())
        for sample, reward in enumerate(REWARDS)
    ]
    (folder / "exp_rollouts_000000.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def episode(ids: list[int], sample: int, reward: float, version: int = 11) -> Row:
    """`Episode.to_record()`: model_dump without None and without tensors. The last two ids of the prompt are the
    scaffold that opens the answer, which the sampled node carries."""
    sampled = response(ids, sample)
    task = {"type": "GSM8KTask", "data": {"idx": 0, "prompt": "What?"}, "key": "k", "hash": "h"}
    nodes = [
        _node(None, {"role": "user", "content": "What?"}, ids[:-2], [False] * (len(ids) - 2), []),
        _node(
            0,
            {"role": "assistant", "content": "so"},
            [*ids[-2:], *sampled],
            [False, False] + [True] * len(sampled),
            logprobs(sample),
        )
        | {"sampled": True, "advantages": [0.1] * len(sampled)},
    ]
    trace = {
        "version": 1,
        "id": f"t{sample}",
        "verifiers": {"version": "0.3.1"},
        "task": task,
        "agent": {"config": {"model": "m"}, "name": "agent", "trainable": True},
        "tools": [],
        "nodes": nodes,
        "calls": [
            {
                "node": 1,
                "model": "m",
                "sampling": {"temperature": 1.0, "max_tokens": 64},
                "endpoint": "/v1/generate",
                "finish_reason": "stop",
                "time": {"start": 0.0, "end": 1.0},
            }
        ],
        "rewards": {"correct": {"score": reward, "weight": 1.0}, "length": {"score": 3.0, "weight": 0.0}},
        "metrics": {"num_turns": 1.0},
        "info": {},
        "extra_usage": [],
        "is_completed": True,
        "ok": True,
        "errors": [],
    }
    work = {"type": "train", "step": 12, "policy": {"start": version, "end": version}}
    return {
        "id": f"e{sample}",
        "env": {"id": "gsm8k", "name": "gsm8k"},
        "task": task,
        "group": {"id": f"g{len(ids)}"},
        "run": {"type": "train", "id": "r", "work": work},
        "ok": True,
        "errors": [],
        "traces": [trace],
    }


def _node(parent: int | None, message: Row, ids: list[int], mask: list[bool], values: list[float]) -> Row:
    node = {"message": message, "sampled": False, "timestamp": 1.0, "token_ids": ids, "mask": mask}
    return node | {"is_content": [], "logprobs": values} | ({} if parent is None else {"parent": parent})


def prime_rl(folder: Path, prompts: Prompts, version: int = 11) -> Path:
    """What FileMonitor appends, with another step's file of `all`, which holds the same episodes and failed ones."""
    rows = [episode(ids, i, reward, version) for ids in prompts.values() for i, reward in enumerate(REWARDS)]
    for kind in ("effective", "all"):
        path = folder / "rollouts" / "step_12" / "train" / kind / "traces.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / "rollouts"
