"""What a problem becomes for the model."""

from typing import Any

import pytest

from oapl_core.problems.prompts import messages

PROBLEM: dict[str, Any] = {
    "problem_id": "p", "kind": "stdin", "statement": "Add two numbers.", "starter_code": None, "entry_point": None,
}  # fmt: skip


@pytest.mark.parametrize("kind", ["stdin", "function", "assert", "math"])
@pytest.mark.parametrize("style", ["plain", "deepcoder"])
def test_a_prompt_is_one_user_turn_that_holds_the_statement(kind: str, style: Any) -> None:
    (turn,) = messages({**PROBLEM, "kind": kind, "entry_point": "add"}, style)
    assert turn["role"] == "user"
    assert "Add two numbers." in turn["content"]


def test_plain_is_the_statement_alone() -> None:
    assert messages(PROBLEM, "plain")[0]["content"] == "Add two numbers."


def test_deepcoder_asks_stdin_programs_to_read_and_write_and_leaves_the_fence_open_for_code() -> None:
    content = messages(PROBLEM, "deepcoder")[0]["content"]
    assert content.startswith("You are an expert Python programmer.")
    assert "writes output to STDOUT" in content
    assert "```python\n# YOUR CODE HERE\n```" in content
    assert content.rstrip().endswith("### Answer: (use the provided format with backticks)")


def test_deepcoder_shows_the_starter_code_of_a_function() -> None:
    problem = {**PROBLEM, "kind": "function", "entry_point": "add", "starter_code": "def add(a, b):\n    pass"}
    assert "```python\ndef add(a, b):\n    pass\n```" in messages(problem, "deepcoder")[0]["content"]


def test_deepcoder_names_the_function_when_there_is_no_starter_code() -> None:
    problem = {**PROBLEM, "kind": "function", "entry_point": "add"}
    assert "def add(" in messages(problem, "deepcoder")[0]["content"]


def test_deepcoder_asks_for_a_boxed_answer_to_maths() -> None:
    content = messages({**PROBLEM, "kind": "math"}, "deepcoder")[0]["content"]
    assert "\\boxed{}" in content
    assert "```" not in content
