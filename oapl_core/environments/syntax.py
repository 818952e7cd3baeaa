"""Tool calls in what a model said. Pure.

Sources of the forms: Qwen3's chat template and Hermes' function calling (`json`), Llama 3's prompt format (`llama`).
What stands inside of <think> calls nothing: it is not said to anybody.
"""

import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from oapl_core.environments.arguments import fitted
from oapl_core.environments.protocol import ToolCall, ToolError
from oapl_core.storable import json_text, storable

Tools = Sequence[Callable[..., str]]
_JSON = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
_NAME_CHARACTERS = 60
_FENCE = re.compile(r"^```(\w+)[^\n]*\n(.*?)(?:^```\s*$|\Z)", re.DOTALL | re.MULTILINE)


def calls(
    text: str, syntax: str, tools: Tools, most: int | None = None, is_thinking: bool = False
) -> tuple[ToolCall, ...]:
    """Read the calls of a turn, in order; one that cannot be run has an ``error``.

    Args:
        text: the turn, decoded.
        syntax: `json`, `llama`, `fence` or `tags` (settings/environment.py).
        tools: what may be called; `fence` and `tags` give their text to a tool's first parameter.
        most: how many a turn may make; the one behind them has an error that says so, and the rest are left out.
        is_thinking: the turn's prompt ends inside of <think>.
    """
    named = {tool.__name__: tool for tool in tools}
    readers = _readers(_spoken(text, is_thinking), syntax, named)
    checked = [_checked(read(), named) for read in readers[:most]]
    if left := len(readers) - len(checked):
        checked.append(replace(readers[len(checked)](), error=f"a turn may make {most} calls; {left} were not run"))
    return tuple(checked)


def _checked(call: ToolCall, named: Mapping[str, Callable[..., str]]) -> ToolCall:
    """Return ``call`` with arguments as its tool takes them, or with the error that the model is told."""
    if call.error:
        return call
    if call.name not in named:
        error = f"there is no tool {call.name[:_NAME_CHARACTERS]!r}; the tools are {', '.join(named) or 'none'}"
        return replace(call, error=error)
    try:
        return replace(call, arguments=fitted(named[call.name], call.arguments))
    except ToolError as error:
        return replace(call, error=str(error))


def _spoken(text: str, is_thinking: bool) -> str:
    """Return what a turn says behind its thinking, and before thinking that is never closed."""
    _, closed, behind = text.rpartition("</think>")
    return "" if is_thinking and not closed else behind.partition("<think>")[0]


def _readers(spoken: str, syntax: str, named: Mapping[str, Callable[..., str]]) -> list[Callable[[], ToolCall]]:
    """Return a reader for each call of a turn: a turn may write more calls than are ever read."""
    if syntax == "json":
        return [partial(_of_json, match, "arguments") for match in _JSON.findall(spoken)]
    if syntax == "llama":
        # some write a call behind <|python_tag|>, which is a special token and left out of the text
        return [partial(_of_json, spoken, "parameters")] if spoken.lstrip().startswith("{") else []
    if syntax == "fence":
        pairs = [(name, body) for name, body in _FENCE.findall(spoken) if name in named]
    else:
        pattern = re.compile(rf"<({'|'.join(map(re.escape, named))})>(.*?)(?:</\1>|\Z)", re.DOTALL)
        pairs = pattern.findall(spoken) if named else []
    return [partial(_of_text, named[name], name, body) for name, body in pairs]


def _of_text(tool: Callable[..., str], name: str, body: str) -> ToolCall:
    # a tool without parameters has no use for the text
    arguments = dict.fromkeys(list(inspect.signature(tool).parameters)[:1], body)
    return ToolCall(name, arguments, json_text(arguments))


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is no number")


def _of_json(text: str, key: str) -> ToolCall:
    written = text.strip()
    try:
        call: Any = storable(json.loads(written, parse_constant=_no_number))
        json_text(call)  # readable JSON may be nested too deeply to be written
    except (ValueError, RecursionError) as error:
        return ToolCall("", {}, written, f"the call is not JSON ({error})")
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return ToolCall("", {}, written, "the call must be an object with `name` and `arguments`")
    # models mix the two words up
    arguments = call.get(key, call.get("arguments", call.get("parameters", {})))
    if not isinstance(arguments, dict):
        return ToolCall(call["name"], {}, written, f"the {key} must be an object")
    return ToolCall(call["name"], arguments, json_text(arguments))
