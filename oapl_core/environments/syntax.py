"""Tool calls in what a model said. Pure.

Sources of the forms: Qwen3's chat template and Hermes' function calling (`json`), Llama 3's prompt format (`llama`).
What stands inside of <think> calls nothing: it is not said to anybody.
"""

import inspect
import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from oapl_core.environments.protocol import ToolCall

Tools = Sequence[Callable[..., str]]
_JSON = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
_FENCE = re.compile(r"^```(\w+)[^\n]*\n(.*?)(?:^```\s*$|\Z)", re.DOTALL | re.MULTILINE)


def calls(text: str, syntax: str, tools: Tools) -> tuple[ToolCall, ...]:
    """The calls of a turn, in order; one that cannot be read has an ``error``.

    Args:
        text: the turn, decoded.
        syntax: `json`, `llama`, `fence` or `tags` (settings/environment.py).
        tools: what may be called; `fence` and `tags` give their text to a tool's first parameter.
    """
    said = text.rpartition("</think>")[2]
    if "<think>" in said:  # never closed
        said = said.partition("<think>")[0]
    if syntax == "json":
        return tuple(_of_json(match, "arguments") for match in _JSON.findall(said))
    if syntax == "llama":
        # some write a call behind <|python_tag|>, which is a special token and left out of the text
        return (_of_json(said, "parameters"),) if said.lstrip().startswith("{") else ()
    named = {tool.__name__: tool for tool in tools}
    if syntax == "fence":
        pairs = [(name, body) for name, body in _FENCE.findall(said) if name in named]
    else:
        pattern = re.compile(rf"<({'|'.join(map(re.escape, named))})>(.*?)(?:</\1>|\Z)", re.DOTALL)
        pairs = pattern.findall(said) if named else []
    return tuple(_of_text(named[name], name, body) for name, body in pairs)


def _of_text(tool: Callable[..., str], name: str, body: str) -> ToolCall:
    arguments = {next(iter(inspect.signature(tool).parameters)): body}
    return ToolCall(name, arguments, json.dumps(arguments, ensure_ascii=False))


def _of_json(text: str, key: str) -> ToolCall:
    written = text.strip()
    try:
        said: Any = json.loads(written)
    except (ValueError, RecursionError) as error:
        return ToolCall("", {}, written, f"the call is not JSON ({error})")
    if not isinstance(said, dict) or not isinstance(said.get("name"), str):
        return ToolCall("", {}, written, "the call must be an object with `name` and `arguments`")
    # models mix the two words up
    arguments = said.get(key, said.get("arguments", said.get("parameters", {})))
    if not isinstance(arguments, dict):
        return ToolCall(said["name"], {}, written, f"the {key} must be an object")
    return ToolCall(said["name"], arguments, json.dumps(arguments, ensure_ascii=False))
