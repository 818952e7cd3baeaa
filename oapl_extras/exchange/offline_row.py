"""One row of a foreign data set: its required columns, and the reasons why a row cannot be used; pure.

    not_an_object          no JSON object
    missing_column         no prompt, response, precomputed_reward or response_rewards
    bad_prompt             not a conversation: a list of {role, content} with texts; other formats: no text or token ids
    bad_response           not a text
    bad_reward             precomputed_reward is not a number, or not one that a column of rewards can hold as finite
    bad_response_rewards   not a list of such numbers
    bad_token_ids          response_token_ids is not a list of token ids
    bad_sampling           log-probs that are not one number for each token id
    bad_turns              turns that are no record of columns.TURNS
    bad_messages           no conversation in which a model answers (messages.py)

A row counts under the first reason that holds.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

from oapl_core.tables import as_stored, as_table
from oapl_core.turns.rows import columns, recorded

ABOUT = ("problem_id", "kind", "info")
"""Columns of a problem that exports add to ``extra_info``; ``info`` is JSON, and has the golds if there are several."""
_REQUIRED = ("prompt", "response", "precomputed_reward", "response_rewards")


def complaint(raw: Any) -> str | None:
    """Return the first reason, in the order above, why ``raw`` cannot be used; None if it can."""
    if not isinstance(raw, Mapping):
        return "not_an_object"
    if not _are_turns(raw.get("turns"), raw.get("response_token_ids")):
        return "bad_turns"
    if "turn_messages" in raw:
        return None if _is_number(raw.get("precomputed_reward")) else "bad_reward"
    if "prompt_token_ids" in raw or "prompt_text" in raw:
        return _complaint_of_converted(raw)
    if any(raw.get(name) is None for name in _REQUIRED):
        return "missing_column"
    checks = {
        "bad_prompt": _is_conversation(raw["prompt"]),
        "bad_response": isinstance(raw["response"], str),
        "bad_reward": _is_number(raw["precomputed_reward"]),
        "bad_response_rewards": isinstance(raw["response_rewards"], list)
        and all(map(_is_number, raw["response_rewards"])),
        "bad_token_ids": _are_ids(raw.get("response_token_ids")),
        "bad_sampling": _is_sampling(raw.get("sampling"), raw.get("response_token_ids")),
    }
    return next((reason for reason, fine in checks.items() if not fine), None)


def _complaint_of_converted(raw: Mapping[str, Any]) -> str | None:
    """Return the first reason why a row that a format's reader made (``formats.py``) cannot be used; None if it can."""
    ids, reward = raw.get("response_token_ids"), raw.get("precomputed_reward")
    prompt = raw.get("prompt_token_ids")
    checks = {
        "bad_prompt": bool(prompt) and _are_ids(prompt) if prompt is not None else isinstance(raw["prompt_text"], str),
        "bad_response": ids is not None or isinstance(raw.get("response"), str),
        "bad_reward": _is_number(reward),
        "bad_token_ids": _are_ids(ids),
        "bad_sampling": _is_sampling(raw["sampling"], ids),
    }
    return next((reason for reason, fine in checks.items() if not fine), None)


def group_key(raw: Mapping[str, Any]) -> str:
    """Hash the conversation, and the problem's id where a row has one, to 16 hex digits: equal for the rows of a group.

    ``extra_info.index`` is no part of it: in the authors' data sets it is not stable.
    """
    # 64 bits of the hash: of a million prompts two share a key with probability 3e-8.
    turns: Any = raw.get("prompt_token_ids") or raw.get("prompt_text")
    if turns is None:
        turns = [[turn["role"], turn["content"]] for turn in raw["prompt"]]
    return hashlib.sha256(json.dumps([turns, extra(raw).get("problem_id")]).encode()).hexdigest()[:16]


def extra(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return ``extra_info``, empty if there is none."""
    info = raw.get("extra_info")
    return info if isinstance(info, Mapping) else {}


def _is_conversation(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(
            isinstance(turn, Mapping) and isinstance(turn.get("role"), str) and isinstance(turn.get("content"), str)
            for turn in value
        )
    )


def _is_number(value: Any) -> bool:
    # True is an int in Python
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(as_stored(value))
    except OverflowError:  # a whole number beyond float64
        return False


def _are_turns(value: Any, ids: Any) -> bool:
    import pyarrow as pa

    if value is None:
        return True
    if not isinstance(value, Mapping) or not isinstance(ids, list):
        return False
    try:
        as_table([recorded(value)], columns())
    except (pa.ArrowException, TypeError, ValueError):
        return False
    return True


def _are_ids(value: Any) -> bool:
    # As tables.ROLLOUTS stores them: integers of 32 bits.
    return value is None or (isinstance(value, list) and all(type(i) is int and 0 <= i < 2**31 for i in value))


def _is_sampling(value: Any, ids: Any) -> bool:
    if value is None:
        return True
    if not isinstance(value, Mapping):
        return False
    logprobs = value.get("logprobs")
    return logprobs is None or (
        isinstance(logprobs, list)
        and ids is not None
        and len(logprobs) == len(ids)
        and all(isinstance(number, int | float) for number in logprobs)
    )
