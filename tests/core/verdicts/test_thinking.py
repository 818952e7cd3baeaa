"""Where a chat template opens <think> in the prompt, nothing in a response is an answer before it closes it."""

from pathlib import Path

import pytest

from oapl_core import tables
from oapl_core.verdicts import extraction
from oapl_core.verdicts.answers import answer_rules
from oapl_core.verdicts.verify import verify
from tests.core.verdicts.test_verify import RIGHT, made_run, verdicts

BOX = "so it is \\boxed{2}"
CODE = "```python\nprint(1)\n```"


@pytest.mark.parametrize(
    ("prompt", "opens"),
    [("...<|assistant|><think>\n", True), ("...<think>", True), ("<think>\n\n</think>\n\n", False), ("", False)],
)
def test_a_prompt_that_ends_inside_of_think_is_known(prompt: str, opens: bool) -> None:
    assert extraction.opens_thinking(prompt) is opens


@pytest.mark.parametrize(("extract", "answer"), [(answer_rules.maths, BOX), (extraction.program, CODE)])
def test_an_answer_counts_only_after_the_thinking(extract, answer: str) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
    right = extract(answer)
    assert right is not None
    assert extract(answer, True) is None
    assert extract(f"<think>{answer}") is None
    assert extract(f"wrong {answer.replace('2', '3')}\n</think>\n{answer}", True) == right
    assert extract(f"<think>{answer}</think>nothing") is None


@pytest.mark.parametrize(("prompt", "outcome"), [("ask<think>\n", "no_answer"), ("ask<think>\n\n</think>\n", "passed")])
def test_a_run_whose_prompts_open_think_judges_what_follows_it(prompt: str, outcome: str, tmp_path: Path) -> None:
    run = made_run(tmp_path, parts=1, right=RIGHT)
    row = {"problem_id": "p", "split": "train", "prompt": prompt, "prompt_ids": [1]}
    with run.writing(run.prompts, {}, {}) as draft:
        draft.rows = tables.write_table(draft.path, tables.PROMPTS, [row])
    verify(run, 0)
    assert verdicts(run)[0]["outcome"] == outcome
