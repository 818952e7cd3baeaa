"""A problem as chat messages: one definition for sampling, training, evaluation and exchange. Pure.

- `plain`: the statement alone.
- `deepcoder`: one user turn, letter by letter that of DeepCoder's own pipeline (rllm: no blank line goes before
  "### Format"); maths get DeepScaleR's "Let's think step by step ...".
- `livecodebench`: LiveCodeBench's system and user turn for chat models (lcb_runner/prompts/code_generation.py).
- `matharena`: MathArena's instruction, then the problem; AIME's says what its answers are.

tests/core/problems/golden has each, letter by letter. Whether a model thinks before it answers is for its chat
template to say (`problems.thinking`).
"""

from collections.abc import Mapping
from typing import Any, Literal, get_args

from oapl_core.errors import ConfigError

Style = Literal["plain", "deepcoder", "livecodebench", "matharena"]
STYLES: tuple[str, ...] = get_args(Style)

# Letter by letter as published, mistakes included ("Read the inputs from stdin solve the problem"): a model that was
# trained or measured with these words gives other answers to better ones.
_EXPERT = (
    "You are an expert Python programmer. You will be given a question (problem specification) and will generate a "
    "correct Python program that matches the specification and passes all tests."
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
_STEP_BY_STEP = "Let's think step by step and output the final answer within \\boxed{}."
_BOXED = "Put your final answer within \\boxed{}."
_AIME = "The answer is an integer between 0 and 999 inclusive."


def messages(problem: Mapping[str, Any], style: Style) -> list[dict[str, str]]:
    """The conversation that asks ``problem`` (kind, statement, starter_code, entry_point, platform).

    Raises:
        ConfigError: the style has no words for problems of this kind.
    """
    # One place decides, so that what is trained, evaluated or exported cannot differ from what was sampled.
    is_maths, statement = problem["kind"] == "math", problem["statement"]
    if (style == "livecodebench" and is_maths) or (style == "matharena" and not is_maths):
        raise ConfigError(
            f"problem {problem.get('problem_id')!r} is of kind {problem['kind']}, which prompt_style "
            f"{style} has no words for; use deepcoder or plain"
        )
    if style == "plain":
        return [_user(statement)]
    if style == "matharena":
        instruction = f"{_BOXED}\n{_AIME}" if problem.get("platform") == "aime" else _BOXED
        return [_user(f"{instruction}\n\n{statement}")]
    if is_maths:
        return [_user(f"{statement} {_STEP_BY_STEP}")]
    if style == "deepcoder":
        return [_user(f"{_EXPERT}\n\n{statement}{_format(problem)}")]
    # LiveCodeBench alone has a system turn; DeepCoder's pipeline puts the same words into the user's.
    return [{"role": "system", "content": _EXPERT}, _user(f"### Question:\n{statement}\n\n{_format(problem)}")]


def _user(content: str) -> dict[str, str]:
    return {"role": "user", "content": content}


def _format(problem: Mapping[str, Any]) -> str:
    """What is to be written, and the fence for it.

    A function without starter code is named in the fence: asked for a program that reads, as the pipelines named above
    do then, no model could solve it.
    """
    if problem["kind"] == "stdin":
        wanted, fenced = _WITH_STDIN, "# YOUR CODE HERE"
    else:
        wanted, fenced = _WITH_STARTER, problem["starter_code"] or f"def {problem['entry_point']}("
    return f"### Format: {wanted}\n```python\n{fenced}\n```\n\n### Answer: (use the provided format with backticks)\n\n"
