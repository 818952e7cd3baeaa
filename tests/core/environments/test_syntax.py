"""Calls are read as each form writes them, and nothing that the model only thinks is one."""

import json

import pytest

from oapl_core.environments.syntax import calls


def look(words: str, most: int = 3) -> str:
    """Looks something up."""
    return words * most


def found(text: str, syntax: str) -> list[tuple[str, dict[str, object], bool]]:
    return [(call.name, dict(call.arguments), bool(call.error)) for call in calls(text, syntax, [look])]


def test_where_the_prompt_opened_the_thinking_only_what_follows_it_calls() -> None:
    call = f"<tool_call>{WRITTEN}</tool_call>"
    assert calls(f"I would {call}", "json", [look], is_thinking=True) == ()
    assert calls("I <look>a</look>", "tags", [look], is_thinking=True) == ()
    (one,) = calls(f"I would {call}</think>{call}", "json", [look], is_thinking=True)
    assert one.arguments == ARGUMENTS


WRITTEN = '{"name": "look", "arguments": {"words": "a <b>", "most": 2}}'
ARGUMENTS = {"words": "a <b>", "most": 2}


@pytest.mark.parametrize(
    ("syntax", "text"),
    [
        ("json", f"I look.\n<tool_call>\n{WRITTEN}\n</tool_call>"),
        ("json", f"<tool_call>{WRITTEN}"),  # ended by its end token
        ("llama", WRITTEN.replace("arguments", "parameters")),
        ("llama", WRITTEN),
    ],
)
def test_json(syntax: str, text: str) -> None:
    assert found(text, syntax) == [("look", ARGUMENTS, False)]
    assert json.loads(calls(text, syntax, [look])[0].written) == ARGUMENTS


@pytest.mark.parametrize(
    ("syntax", "text"),
    [
        ("fence", "First:\n```look now\na b\n```\nthen"),
        ("fence", "```look\na b\n"),
        ("tags", "<look>a b\n</look>"),
        ("tags", "I <look>a b\n"),
    ],
)
def test_text(syntax: str, text: str) -> None:
    assert found(text, syntax) == [("look", {"words": "a b\n"}, False)]


@pytest.mark.parametrize(
    ("syntax", "text"),
    [
        ("json", "the answer"),
        ("json", f"<think><tool_call>{WRITTEN}</tool_call></think> done"),
        ("json", f"<think><tool_call>{WRITTEN}</tool_call> never closed"),
        ("llama", f"I say {WRITTEN}"),
        ("fence", "```python\nlook()\n```"),
        ("tags", "<see>a</see>"),
    ],
)
def test_no_call(syntax: str, text: str) -> None:
    assert found(text, syntax) == []


def test_several_calls_keep_their_order() -> None:
    text = f"<tool_call>{WRITTEN}</tool_call><tool_call>{WRITTEN.replace('look', 'see')}</tool_call>"
    assert [name for name, _, _ in found(text, "json")] == ["look", "see"]


@pytest.mark.parametrize("inner", ["{", "[]", '{"name": 1}', '{"name": "look", "arguments": "a"}', "[" * 10**5])
def test_what_cannot_be_read_is_a_call_with_an_error(inner: str) -> None:
    ((_, _, is_wrong),) = found(f"<tool_call>{inner}</tool_call>", "json")
    assert is_wrong
