"""Trajectories of a run are looked at row by row, with the chat templates of three families."""

from pathlib import Path
from typing import Any

import pytest

from oapl_core import tables
from oapl_core.environments.turn_check import Template, check_turns
from oapl_core.run_folder.run import Run
from oapl_core.tables import LOSS_MASK
from oapl_core.turns import has_turns
from oapl_core.turns.rows import prompt_hash
from tests.chat_templates import FAMILIES
from tests.synthetic_run import Sizes, write_synthetic_run
from tests.tiny_model import END, tiny_tokenizer
from tests.whole_run import called

PLAIN, THOUGHT = "so it is 7", "<think>\n3 and 4\n</think>\n\nso it is 7"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return tiny_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.mark.parametrize(
    ("family", "said", "calls", "kept"),
    [
        *((family, PLAIN, calls, True) for family in FAMILIES for calls in (False, True)),
        ("qwen", THOUGHT, False, False),  # a user's next turn: earlier reasoning is left out
        ("qwen", THOUGHT, True, True),  # a tool's result is no new question
        ("llama", THOUGHT, False, True),
        ("gemma", THOUGHT, True, True),
        ("qwen", f"{PLAIN}\n", False, True),
        ("llama", f"{PLAIN}\n", False, False),  # white space at the end of a turn is cut off
        ("gemma", f"{PLAIN} ", True, False),
    ],
)
def test_what_a_template_does_to_an_earlier_turn(
    tokenizer: Any, family: str, said: str, calls: bool, kept: bool
) -> None:
    tokenizer.chat_template = FAMILIES[family]
    ids = tokenizer(f"{said}{END}", add_special_tokens=False)["input_ids"]
    assert Template(tokenizer, {}).keeps(ids, calls) == kept


def two_turns(tokenizer: Any, row: dict[str, Any], prompt: list[int], first: str) -> dict[str, Any]:
    """``row`` with two turns of the model, between them a user's."""
    said, between, last = (
        tokenizer(text, add_special_tokens=False)["input_ids"]
        for text in (f"{first}{END}", f"\n<|im_start|>user\nsure?{END}\n<|im_start|>assistant\n", f"yes{END}")
    )
    ids, start = said + between + last, len(said) + len(between)
    return row | {
        "response_ids": ids,
        "logprobs": [-1.0] * len(said) + [0.0] * len(between) + [-1.0] * len(last),
        LOSS_MASK: [True] * len(said) + [False] * len(between) + [True] * len(last),
        "turn_starts": [0, start],
        "prompt_hashes": [prompt_hash(prompt), prompt_hash(prompt + ids[:start])],
        "tool_calls": None,
        "turn_rewards": None,
        "environment": "asking",
    }


def write_turns(run: Run, tokenizer: Any, first: dict[int, str]) -> list[str]:
    """Make trajectories of a run's rollouts, whose first turn says PLAIN or what ``first`` has for its number."""
    table = tables.read_table(run.prompts, tables.PROMPTS).to_pylist()
    prompts, names = {row["problem_id"]: row["prompt_ids"] for row in table}, list[str]()
    for part in sorted(run.rollouts(0).glob("*.parquet")):
        rows = tables.read_table(part, tables.ROLLOUTS).to_pylist()
        made = []
        for row in rows:
            made.append(two_turns(tokenizer, row, prompts[row["problem_id"]], first.get(len(names), PLAIN)))
            names.append(row["rollout_id"])
        with run.writing(part, {}, {}) as draft:
            draft.rows = tables.write_table(draft.path, tables.ROLLOUTS, made)
    return names


@pytest.fixture
def run(tmp_path: Path, tokenizer: Any) -> Run:
    run = write_synthetic_run(tmp_path, Sizes(train=6), until="rollouts")
    tokenizer.chat_template = FAMILIES["qwen"]
    tokenizer.save_pretrained(run.base_model())
    return run


@pytest.mark.parametrize("family", FAMILIES)
def test_prefixes_are_equal_whatever_the_template_and_what_it_rewrites_is_named(
    run: Run, tokenizer: Any, family: str
) -> None:
    tokenizer.chat_template = FAMILIES[family]
    tokenizer.save_pretrained(run.base_model())
    names = write_turns(run, tokenizer, {3: THOUGHT, 5: f"{PLAIN} "})
    found = check_turns(run)
    assert found.rows == len(names) == 24
    assert not found.unsound
    assert [(one.name, one.wrong) for one in found.reworded] == [(names[3 if family == "qwen" else 5], "turn 0")]


def test_a_prompt_that_the_engine_was_not_given_is_named_and_fails_the_check(run: Run, tokenizer: Any) -> None:
    names = write_turns(run, tokenizer, {2: THOUGHT})
    done = called("check", run.root)
    assert (done.returncode, done.stderr) == (0, "")
    assert "each turn of 24 rollouts was given exactly what stands before it" in done.stdout
    assert f"1 of them a server that renders messages would show otherwise (first {names[2]}, turn 0)" in done.stdout
    part = min(run.rollouts(0).glob("*.parquet"))
    assert has_turns(part)
    rows = tables.read_table(part, tables.ROLLOUTS).to_pylist()
    rows[1]["prompt_hashes"][1] += 1
    with run.writing(part, {}, {}) as draft:
        draft.rows = tables.write_table(draft.path, tables.ROLLOUTS, rows)
    done = called("check", run.root)
    assert done.returncode == 2
    assert f"{names[1]} was given another prompt in turn 1 than the tokens before it" in done.stdout
    assert "1 of 24 rollouts are not what the model saw" in done.stdout
