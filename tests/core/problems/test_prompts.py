"""What a problem becomes for the model: letter by letter what lies in golden/.

`python -m tests.core.problems.test_prompts` writes golden/ again; read the difference before it is committed.
"""

from pathlib import Path
from typing import Any

import pytest

from oapl_core.errors import ConfigError
from oapl_core.problems.prompts import STYLES, Style, messages

GOLDEN = Path(__file__).parent / "golden"
STATEMENT = "Add two numbers.\n\nInput\n\nTwo integers on one line."
STARTER = "class Solution:\n    def add(self, a: int, b: int) -> int:\n        "
PROBLEM: dict[str, Any] = {
    "problem_id": "p",
    "kind": "stdin",
    "statement": STATEMENT,
    "starter_code": None,
    "entry_point": None,
    "platform": None,
}
PROBLEMS: dict[str, dict[str, Any]] = {
    "stdin": PROBLEM,
    "function": PROBLEM | {"kind": "function", "entry_point": "add", "starter_code": STARTER},
    "function_without_starter": PROBLEM | {"kind": "function", "entry_point": "add"},
    "assert": PROBLEM | {"kind": "assert", "entry_point": "add", "starter_code": "def add(a, b):\n"},
    "math": PROBLEM | {"kind": "math", "statement": "What is $1 + 1$?"},
    "aime": PROBLEM | {"kind": "math", "statement": "What is $1 + 1$?", "platform": "aime"},
}
NO_WORDS = {("livecodebench", "math"), ("livecodebench", "aime")} | {
    ("matharena", name) for name, problem in PROBLEMS.items() if problem["kind"] != "math"
}
CASES = [(style, name) for style in STYLES for name in PROBLEMS if (style, name) not in NO_WORDS]


def written(style: Any, name: str) -> str:
    return "".join(f"[{turn['role']}]\n{turn['content']}[end]\n" for turn in messages(PROBLEMS[name], style))


@pytest.mark.parametrize(("style", "name"), CASES)
def test_a_prompt_is_letter_by_letter_the_golden_one(style: Style, name: str) -> None:
    assert written(style, name) == (GOLDEN / f"{style}_{name}.txt").read_text(encoding="utf-8")


def test_every_golden_file_belongs_to_a_style() -> None:
    assert {path.stem for path in GOLDEN.glob("*.txt")} == {f"{style}_{name}" for style, name in CASES}


@pytest.mark.parametrize(("style", "name"), CASES)
def test_a_prompt_ends_with_one_user_turn_that_holds_the_statement(style: Style, name: str) -> None:
    *before, turn = messages(PROBLEMS[name], style)
    assert turn["role"] == "user"
    assert PROBLEMS[name]["statement"] in turn["content"]
    assert [each["role"] for each in before] == (["system"] if style == "livecodebench" else [])


@pytest.mark.parametrize("style", ["deepcoder", "livecodebench"])
def test_a_program_that_is_called_is_never_asked_to_read_its_input(style: Any) -> None:
    for name in ("function", "function_without_starter", "assert"):
        content = messages(PROBLEMS[name], style)[-1]["content"]
        assert "stdin" not in content
        assert "def add(" in content


@pytest.mark.parametrize(("style", "name"), sorted(NO_WORDS))
def test_a_style_without_words_for_a_kind_is_refused_in_one_line(style: Any, name: str) -> None:
    with pytest.raises(ConfigError, match="has no words for") as caught:
        messages(PROBLEMS[name], style)
    assert "\n" not in str(caught.value)


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for case in CASES:
        (GOLDEN / f"{case[0]}_{case[1]}.txt").write_text(written(*case), encoding="utf-8")
