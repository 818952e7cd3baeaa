"""A problem as chat messages. Pure; the two styles are the whole difference between experiments' prompts.

`plain` shows the statement alone. `deepcoder` is the single user turn of the DeepCoder replication (LiveCodeBench's
wording for programs; "reason step by step ... \\boxed{}" for maths).
"""

from collections.abc import Mapping
from typing import Any, Literal

Style = Literal["plain", "deepcoder"]

_EXPERT = (
    "You are an expert Python programmer. You will be given a question (problem specification) and will generate a "
    "correct Python program that matches the specification and passes all tests.\n\n"
)
_WITH_STARTER = (
    "You will use the following starter code to write the solution to the problem and enclose your code within "
    "delimiters."
)
_WITH_STDIN = (
    "Read the inputs from stdin solve the problem and write the answer to stdout (do not directly test on the sample "
    "inputs). Enclose your code within delimiters as follows. Ensure that when the python program runs, it reads the "
    "inputs, runs the algorithm and writes output to STDOUT."
)
_BOXED = "Let's think step by step and output the final answer within \\boxed{}."


def messages(problem: Mapping[str, Any], style: Style) -> list[dict[str, str]]:
    """The conversation that asks ``problem``: one user turn, for the model's own chat template."""
    content = problem["statement"] if style == "plain" else _deepcoder(problem)
    return [{"role": "user", "content": content}]


def _deepcoder(problem: Mapping[str, Any]) -> str:
    if problem["kind"] == "math":
        return f"{problem['statement']} {_BOXED}"
    if problem["kind"] in ("function", "assert"):
        starter = problem["starter_code"] or f"def {problem['entry_point']}("
        wanted, fenced = _WITH_STARTER, starter
    else:
        wanted, fenced = _WITH_STDIN, "# YOUR CODE HERE"
    return (
        f"{_EXPERT}### Question:\n{problem['statement']}\n\n### Format: {wanted}\n```python\n{fenced}\n```\n\n"
        "### Answer: (use the provided format with backticks)\n\n"
    )
