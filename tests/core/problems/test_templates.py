"""Prompts that a person owns: template, system turn, examples; each complaint is one line with file and line."""

import json
from pathlib import Path
from typing import Any

import pytest

from oapl_core.errors import ConfigError
from oapl_core.problems.prompts import conversation
from oapl_core.settings.experiment_file import parse_as
from oapl_core.settings.problems import ProblemsConfig, PromptConfig

PROBLEM = {"problem_id": "p", "kind": "math", "statement": "2 + 3?", "answer": "5", "platform": None}
QUESTION = "Question: {{ statement }}\nAnswer:\n"


def wording(folder: Path, template: str = QUESTION, **settings: Any) -> PromptConfig:
    (folder / "own.jinja").write_text(template)
    return parse_as(PromptConfig, {"template": str(folder / "own.jinja"), **settings}, "test")


def turns(folder: Path, template: str, **problem: Any) -> list[tuple[str, str]]:
    asked = conversation({**PROBLEM, **problem}, wording(folder, template))
    return [(turn["role"], turn["content"]) for turn in asked]


def test_a_template_is_filled_with_the_problems_fields(tmp_path: Path) -> None:
    assert turns(tmp_path, QUESTION) == [("user", "Question: 2 + 3?\nAnswer:")]
    by_kind = '{% if kind == "math" %}\nM {{ statement }}\n{% else %}\n{{ entry_point }}\n{% endif %}\nend'
    assert turns(tmp_path, by_kind) == [("user", "M 2 + 3?\nend")]
    assert turns(tmp_path, by_kind, kind="function", entry_point="f") == [("user", "f\nend")]


def test_a_statement_is_text_and_never_a_template(tmp_path: Path) -> None:
    statement = "{{ 7 * 7 }} {% raw %}{# not a comment #}"
    assert turns(tmp_path, "{{ statement }}", statement=statement) == [("user", statement)]


def test_a_template_sets_the_system_turn_and_the_setting_replaces_it(tmp_path: Path) -> None:
    text = "{% set system %}\nBe brief.\n{%- endset %}\n{{ statement }}"
    assert turns(tmp_path, text)[0] == ("system", "Be brief.")
    assert conversation(PROBLEM, wording(tmp_path, text, system="Be long."))[0]["content"] == "Be long."
    assert len(conversation(PROBLEM, wording(tmp_path, text, system=""))) == 1


def test_examples_are_turns_in_the_templates_words(tmp_path: Path) -> None:
    rows = [{"statement": "1 + 1?", "solution": "It is 2.", "difficulty": "easy"}, {"statement": "0?", "solution": "0"}]
    (tmp_path / "shots.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + "\n")
    by_file = wording(tmp_path, examples=str(tmp_path / "shots.jsonl"))
    by_hand = wording(tmp_path, examples=[{"statement": "1 + 1?", "solution": "It is 2."}, rows[1]][:1])
    found = conversation(PROBLEM, by_file)
    assert [turn["role"] for turn in found] == ["user", "assistant", "user", "assistant", "user"]
    assert [turn["content"] for turn in found[:2]] == ["Question: 1 + 1?\nAnswer:", "It is 2."]
    assert conversation(PROBLEM, by_hand) == [*found[:2], found[-1]]


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("one\n{% if kind %}\n", r"own.jinja:\d: Unexpected end of template"),
        ("one\n{{ statement | shout }}", r"own.jinja:2: No filter named 'shout'"),
        ("one\n\n{{ answer }}", r"own.jinja:3: unknown field `answer`; the fields are problem_id, kind, statement"),
        ("{% include 'other' %}", "own.jinja:1: problem 'p' of kind math: no loader"),
    ],
)
def test_a_wrong_template_is_refused_with_the_settings(tmp_path: Path, template: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        conversation(PROBLEM, wording(tmp_path, template))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("a\n{{ statement.nothing }}", "own.jinja:2: problem 'p' of kind math: .*no attribute 'nothing'"),
        ("a\nb\n{{ statement + 1 }}", "own.jinja:3: problem 'p' of kind math: can only concatenate str"),
        ("{% if platform %}x{% endif %}\n", "own.jinja: gives no text for problem 'p' of kind math"),
        ("a\n{{ raise_exception('not maths') }}", "own.jinja:2: problem 'p' of kind math: not maths"),
        ("{{ statement.__class__.__mro__ }}", "own.jinja:1: .* is unsafe"),
    ],
)
def test_a_template_that_fails_on_a_problem_names_line_and_problem(tmp_path: Path, template: str, message: str) -> None:
    config = wording(tmp_path, template)
    with pytest.raises(ConfigError, match=message) as caught:
        conversation(PROBLEM, config)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("row", "message"),
    [("{", "shots.jsonl:2: is not JSON"), ('{"statement": "a"}', "shots.jsonl:2: must be an object with the texts")],
)
def test_a_broken_example_is_one_line(tmp_path: Path, row: str, message: str) -> None:
    (tmp_path / "shots.jsonl").write_text('{"statement": "a", "solution": "b"}\n' + row)
    with pytest.raises(ConfigError, match=message) as caught:
        wording(tmp_path, examples=str(tmp_path / "shots.jsonl"))
    assert "\n" not in str(caught.value)


def test_a_template_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="`template`: .*none.jinja: cannot be read .No such file"):
        parse_as(PromptConfig, {"template": str(tmp_path / "none.jinja")}, "test")


def test_prompts_depend_on_a_templates_text_and_not_on_its_place(tmp_path: Path) -> None:
    sets = {"train": "a.jsonl", "heldout": "b.jsonl"}
    assert ProblemsConfig.model_validate(sets).slice.keys() == set(ProblemsConfig.model_fields)
    first = ProblemsConfig.model_validate({**sets, "template": wording(tmp_path).template})
    (tmp_path / "own.jinja").rename(tmp_path / "other.jinja")
    renamed = ProblemsConfig.model_validate({**sets, "template": str(tmp_path / "other.jinja")})
    assert first.slice == renamed.slice
    assert first.slice["template"] == QUESTION
    assert first.slice != ProblemsConfig.model_validate({**sets, "template": wording(tmp_path, "x").template}).slice


def test_a_run_keeps_the_template_that_it_was_started_with(tmp_path: Path) -> None:
    kept = wording(tmp_path)
    (tmp_path / "own.jinja").unlink()
    again = PromptConfig.model_validate_json(kept.model_dump_json())
    assert again == kept
    assert conversation(PROBLEM, again)[0]["content"] == "Question: 2 + 3?\nAnswer:"
