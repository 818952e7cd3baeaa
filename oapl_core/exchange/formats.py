"""What other trainers dump of their rollouts, row by row, as rows that an import takes; pure.

Each reader was written from its project's own code:

verl            `trainer.rollout_data_dir`: STEP.jsonl. verl/trainer/ppo/ray_trainer.py, `_dump_generations`, at commit
                b178a3cd56f58b2d502255daba591e92833930a7: texts alone, without special tokens
prime-rl        rollouts/step_N/train/effective/traces.jsonl. src/prime_rl/monitors/file.py at commit
                559b44772e471d1538537b8805cc77f3824a5e64, whose lines are `Episode.to_record()` of verifiers
                (verifiers/v1/episode.py, trace.py, graph.py at commit a60a606ecc4d309247edf9ff92c3eabca362781f):
                ids, log-probs
open-instruct   `--save_traces`: RUN_rollouts_NNNNNN.jsonl. open_instruct/rl_utils.py, `RolloutRecord`, at commit
                e6c3044aa6201c8bfa4573c1b03142af599e730d: ids and, where its engine gave them, log-probs
trl             `log_completions`: completions/completions_NNNNN.parquet. trl/trainer/grpo_trainer.py, `log`, of
                1.10.0.dev0 at commit f2cd57710ae345ea6428ae95363267fcf38a3dc8: texts alone, without special tokens

A row has one of `prompt` (a conversation), `prompt_token_ids` and `prompt_text`, and beside it what
``exchange/__init__.py`` names. Its policy is called as the dump tells policies apart: rows of one step, or of one range
of policy versions. Reasons for which a row is left out, beside those of ``offline_row.py``:

tool_turns        a tool's output is among the tokens, and nothing says where
several_turns     the model spoke more than once
not_finished      the episode or trace failed, or belongs to no training
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Row = dict[str, Any]
Converted = Iterator[Row | str]
"""Rows, or reasons why there is none."""


@dataclass(frozen=True)
class Format:
    """How one project's dumps are read."""

    name: str
    pattern: str
    """Of its files below a folder."""
    convert: Callable[[Any, Mapping[str, float]], Converted]
    """A row of a file, with the weights that a person gave to rewards."""
    has_ids: bool
    """Whether rows hold token ids. If not, prompts are known by their words, as the run's own problems are asked."""


def _native(raw: Any, _weights: Mapping[str, float]) -> Converted:
    yield "not_an_object" if isinstance(raw, str) else raw


def _verl(raw: Any, _weights: Mapping[str, float]) -> Converted:
    if not isinstance(raw, Mapping):
        yield "not_an_object"
    elif any(raw.get(name) is None for name in ("input", "output", "score", "step")):
        yield "missing_column"
    else:
        truth = raw.get("gts")
        # all rows of a step were sampled by the weights before it; asynchronous trainers do not say how much older
        yield _row("verl", f"step {raw['step']}", raw["score"], truth) | {
            "prompt_text": raw["input"],
            "response": raw["output"],
        }


def _open_instruct(raw: Any, _weights: Mapping[str, float]) -> Converted:
    if not isinstance(raw, Mapping):
        yield "not_an_object"
    elif any(raw.get(name) is None for name in ("prompt_tokens", "response_tokens", "reward", "step")):
        yield "missing_column"
    elif isinstance(raw.get("request_info"), Mapping) and raw["request_info"].get("tool_calleds"):
        yield "tool_turns"  # RolloutRecord leaves out the mask of what the policy itself wrote
    else:
        truth = raw.get("ground_truth")
        # a verifier's label: one text in a list, or token ids, which nobody can read without its tokenizer
        truth = truth[0] if isinstance(truth, list) and len(truth) == 1 else truth
        source, policy = str(raw.get("dataset") or "open-instruct"), f"step {raw['step']}"
        row = _row("open-instruct", policy, raw["reward"], truth if isinstance(truth, str) else None, source)
        row["prompt_token_ids"], row["response_token_ids"] = raw["prompt_tokens"], raw["response_tokens"]
        row["sampling"] |= {"logprobs": raw.get("logprobs"), "finish_reason": _ended(raw.get("finish_reason"))}
        yield row


def _prime_rl(raw: Any, _weights: Mapping[str, float]) -> Converted:
    if not isinstance(raw, Mapping) or not isinstance(raw.get("traces"), list):
        yield "missing_column" if isinstance(raw, Mapping) else "not_an_object"
        return
    for trace in raw["traces"]:
        yield _trace(raw, trace) if isinstance(trace, Mapping) else "not_an_object"


def _trace(episode: Mapping[str, Any], trace: Mapping[str, Any]) -> Row | str:
    """A trace of one model call: prompt nodes, then the node that was sampled."""
    nodes, rewards = trace.get("nodes"), trace.get("rewards")
    if not isinstance(nodes, list) or not isinstance(rewards, Mapping):
        return "missing_column"
    if not trace.get("ok") or not _of(trace, "agent", "trainable", default=True):
        return "not_finished"
    # more than one sampled node, or one with others behind it, is a conversation: its prompt holds tokens of the policy
    sampled = [node for node in nodes if node.get("sampled")]
    if len(sampled) != 1 or nodes[-1] is not sampled[0] or any(n.get("parent") != i - 1 for i, n in _later(nodes)):
        return "several_turns"
    node, ids = sampled[0], [token for one in nodes for token in one.get("token_ids") or ()]
    # the scaffold that opens the answer is part of the node and was not sampled
    mask = [False] * (len(ids) - len(node.get("mask") or ())) + list(node.get("mask") or ())
    first = mask.index(True) if True in mask else len(ids)
    if not ids or first == len(ids) or not all(mask[first:]):
        return "bad_token_ids"
    # null: scoring did not run, which is no 0
    scores = [one for one in rewards.values() if one is not None]
    if not scores or not all(_number(one.get("score")) and _number(one.get("weight", 1.0)) for one in scores):
        return "bad_reward"
    reward = sum(one["score"] * one.get("weight", 1.0) for one in scores)
    # weights may be replaced while an answer is sampled; its log-probs are then those of either, token by token
    span, call = _of(episode, "run", "work", "policy", default={}), (trace.get("calls") or [{}])[-1]
    version = "-".join(dict.fromkeys(str(span[key]) for key in ("start", "end") if key in span)) or "unknown"
    row = _row("prime-rl", f"policy {version}", reward, None, str(_of(episode, "env", "id", default="prime-rl")))
    row["prompt_token_ids"], row["response_token_ids"] = ids[:first], ids[first:]
    row["sampling"] |= {
        "logprobs": node.get("logprobs"),
        "finish_reason": _ended(call.get("finish_reason")),
        "temperature": _of(call, "sampling", "temperature"),
        "top_p": _of(call, "sampling", "top_p"),
    }
    return row


def _trl(raw: Any, weights: Mapping[str, float]) -> Converted:
    if any(raw.get(name) is None for name in ("prompt", "completion", "step")):
        yield "missing_column"
        return
    # rewards stand between completion and advantage, with what `log_extra` adds; a function that did not apply is NaN
    names = weights or {
        name: 1.0
        for name, value in raw.items()
        if name not in {"step", "prompt", "completion", "advantage"} and isinstance(value, int | float)
    }
    # as trl sums them: a NaN counts nothing, and a row that no function judged has no reward
    given = {name: raw.get(name) for name in names}
    scores = {name: value for name, value in given.items() if _number(value)}
    reward = sum(names[name] * value for name, value in scores.items()) if scores else None
    yield _row("trl", f"step {raw['step']}", reward, None) | {
        "prompt_text": raw["prompt"],
        "response": raw["completion"],
    }


def _row(project: str, policy: str, reward: Any, truth: Any, source: str | None = None) -> Row:
    return {
        "data_source": source or project,
        "reward_model": {"style": "rule", "ground_truth": truth},
        "precomputed_reward": reward,
        "sampling": {"policy_hash": f"{project} {policy}", "engine": project},
    }


def _later(nodes: list[Any]) -> list[tuple[int, Any]]:
    return list(enumerate(nodes))[1:]


def _of(value: Any, *path: str, default: Any = None) -> Any:
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return default if value is None else value


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _ended(reason: Any) -> str | None:
    return reason if reason in ("stop", "length") else None


NATIVE = Format("oapl", "*", _native, has_ids=True)
FORMATS = {
    one.name: one
    for one in (
        NATIVE,
        Format("verl", "*.jsonl", _verl, has_ids=False),
        # `all` beside `effective` has the same episodes, and those that were never trained on
        Format("prime-rl", "**/train/effective/traces.jsonl", _prime_rl, has_ids=True),
        # RUN_metadata.jsonl lies in the same folder and has no rollouts
        Format("open-instruct", "*_rollouts_*.jsonl", _open_instruct, has_ids=True),
        Format("trl", "**/completions_*.parquet", _trl, has_ids=False),
    )
}
