"""Demonstrations become what sampling would have made: prompt, answer, end; every assistant turn, nothing too long."""

import json
from pathlib import Path
from typing import Any

import pytest

from oapl_core import tables
from oapl_core.errors import DataError
from oapl_core.problems.demonstrate import demonstrate
from oapl_core.problems.prepare import prepare
from oapl_core.run_folder.run import Run
from oapl_core.settings.experiment_file import parse_experiment
from tests.tiny_model import END, write_tokenizer

PROBLEMS = {
    "train": [("a", "What is 1 + 1?"), ("b", "What is 2 + 2?"), ("long", "x" * 300)],
    "validation": [("v", "What is 3 + 3?")],
    "heldout": [("h", "What is 4 + 4?")],
}


def written(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All of a model that demonstrations depend on."""
    folder = tmp_path_factory.mktemp("model")
    write_tokenizer(folder)
    config = {"model_type": "qwen3", "vocab_size": 320, "max_position_embeddings": 400, "eos_token_id": 2}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def run_with(folder: Path, model: Path, rows: list[Any], problems: Any = (), stop: Any = (), **more: Any) -> Run:
    sets: dict[str, Any] = {
        split: str(
            written(
                folder / f"{split}.jsonl",
                [{"problem_id": i, "kind": "math", "statement": text, "answer": "1"} for i, text in of_split],
            )
        )
        for split, of_split in PROBLEMS.items()
    }
    values = {
        "name": "w",
        "runs_dir": str(folder / "runs"),
        "model": str(model),
        "problems": {**sets, "prompt_style": "plain", "max_prompt_tokens": 200, **dict(problems)},
        "sampling": {"max_tokens": 50, "stop": stop},
        "evaluation": {"max_tokens": 50},
        "rounds": [{"rows": {"demonstrations": str(written(folder / "shown.jsonl", rows)), **more}}],
    }
    return Run.create(parse_experiment(values, "test"))


def made(run: Run) -> list[dict[str, Any]]:
    prepare(run)
    demonstrate(run, 0)
    rows: list[dict[str, Any]] = tables.read_table(run.groups(0), tables.GROUPS).to_pylist()
    return rows


def texts(model: Path, rows: list[dict[str, Any]]) -> list[tuple[str, str]]:
    from transformers import AutoTokenizer

    decode = AutoTokenizer.from_pretrained(model).decode
    return [(decode(row["prompt_ids"]), decode(row["response_ids"])) for row in rows]


def dropped(run: Run) -> dict[str, int]:
    found: dict[str, int] = run.ledger.artifacts()[run.name(run.groups(0))].details["dropped"]
    return found


def test_a_solution_joins_its_problem_by_id_and_gets_the_prompt_that_sampling_has(tmp_path: Path, model: Path) -> None:
    run = run_with(tmp_path, model, [{"problem_id": "b", "solution": "4", "source": "someone"}])
    (row,) = made(run)
    prompts = tables.read_table(run.prompts, tables.PROMPTS).to_pylist()
    assert row["prompt_ids"] == next(prompt["prompt_ids"] for prompt in prompts if prompt["problem_id"] == "b")
    assert texts(model, [row])[0][1] == f"4{END}", "an answer ends as one that is sampled"
    facts = {"problem_id": "b", "group": 0, "policy_hash": "unknown", "behavior_logprobs": None, "reward": 1.0}
    assert {key: row[key] for key in facts} == facts


def test_a_problem_of_ones_own_is_asked_as_the_runs_are(tmp_path: Path, model: Path) -> None:
    rows = [{"statement": "What is 5 + 5?", "solution": "10"}]
    ((prompt, answer),) = texts(model, made(run_with(tmp_path, model, rows, {"prompt_style": "deepcoder"})))
    assert prompt.startswith("<|im_start|>user\nWhat is 5 + 5? Let's think step by step")
    assert (prompt.endswith("<|im_start|>assistant\n"), answer) == (True, f"10{END}")


def test_every_assistant_turn_is_a_row_whose_prompt_is_all_before_it(tmp_path: Path, model: Path) -> None:
    roles = ("system", "user", "assistant", "user", "assistant")
    turns = [{"role": role, "content": f"{role} {i}"} for i, role in enumerate(roles)]
    rows = made(run_with(tmp_path, model, [{"messages": turns}, {"messages": turns[1:3]}]))
    assert [row["group"] for row in rows] == [0, 1, 2]
    assert len({row["rollout_id"] for row in rows}) == 3
    (first, one), (second, two), (alone, _) = texts(model, rows)
    assert (one, two) == (f"assistant 2{END}", f"assistant 4{END}")
    assert (
        first == "<|im_start|>system\nsystem 0<|im_end|>\n<|im_start|>user\nuser 1<|im_end|>\n<|im_start|>assistant\n"
    )
    assert second == f"{first}{one}\n<|im_start|>user\nuser 3<|im_end|>\n<|im_start|>assistant\n"
    assert alone == "<|im_start|>user\nuser 1<|im_end|>\n<|im_start|>assistant\n"


def test_a_base_model_is_shown_plain_text(tmp_path: Path, model: Path) -> None:
    run = run_with(tmp_path, model, [{"problem_id": "a", "solution": "2"}], {"chat": False})
    assert texts(model, made(run)) == [("What is 1 + 1?", f" 2{END}")]
    (tmp_path / "stop").mkdir()
    stopped = run_with(
        tmp_path / "stop", model, [{"problem_id": "a", "solution": "2"}], {"chat": False}, ["\nQ:", "##"]
    )
    assert texts(model, made(stopped)) == [("What is 1 + 1?", " 2\nQ:")], "the first stop text ends it, as when sampled"


def test_what_is_too_long_or_measured_is_dropped_and_counted_and_never_cut(tmp_path: Path, model: Path) -> None:
    asked = {"role": "user", "content": "What is 4 + 4?"}
    rows = [
        {"problem_id": "a", "solution": "y" * 80},
        {"problem_id": "long", "solution": "1"},
        {"problem_id": "nobody knows", "solution": "1"},
        {"problem_id": "v", "solution": "6"},
        {"messages": [asked, {"role": "assistant", "content": "8"}]},
        {"problem_id": "a", "solution": "2"},
    ]
    run = run_with(tmp_path, model, rows)
    assert [answer for _, answer in texts(model, made(run))] == [f"2{END}"]
    assert dropped(run) == {
        "with an answer longer than 50 tokens": 1,
        "with a prompt longer than problems.max_prompt_tokens": 1,
        "of no training problem of the run": 1,
        "of a validation or held-out problem": 2,
    }
    again = run_with(tmp_path, model, rows[:5])
    with pytest.raises(DataError, match=r"shown.jsonl: no demonstration is left; dropped: 1 with an answer longer"):
        made(again)


def test_longer_answers_may_be_allowed_than_are_sampled(tmp_path: Path, model: Path) -> None:
    run = run_with(tmp_path, model, [{"problem_id": "a", "solution": "y" * 80}], max_tokens=90)
    assert [len(row["response_ids"]) for row in made(run)] == [81]


def test_the_limit_counts_rows_that_can_be_used(tmp_path: Path, model: Path) -> None:
    rows = [{"problem_id": name, "solution": "2"} for name in ("long", "a", "v", "b", "a")]
    assert [row["problem_id"] for row in made(run_with(tmp_path, model, rows, limit=2))] == ["a", "b"]


def test_parquet_is_read_and_nothing_is_made_twice(
    tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import polars as pl

    file = tmp_path / "shown.parquet"
    pl.DataFrame([{"problem_id": "a", "statement": None, "solution": "2"}] * 3).write_parquet(file)
    run = run_with(tmp_path, model, [], demonstrations=str(file))
    assert len(made(run)) == 3
    demonstrate(run, 0)
    assert "groups of round 0: done" in capsys.readouterr().out
    pl.DataFrame([{"problem_id": "b", "solution": "4"}]).write_parquet(file)
    assert len(made(run)) == 1, "another file makes other demonstrations"


USER, SAID = {"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ([1], "is not a JSON object; write `messages`, or"),
        ({"problem_id": "a"}, "write `messages`, or a `solution` and"),
        ({"solution": "2"}, "write `messages`, or a `solution` and"),
        ({"problem_id": "a", "solution": " "}, "write `messages`, or a `solution` and"),
        ({"problem_id": 7, "solution": "2"}, "`problem_id`, `statement` and `kind` must be texts"),
        ({"messages": "hello"}, "`messages` must be a list of objects"),
        ({"messages": [USER]}, "`messages` has no assistant turn"),
        ({"messages": [SAID, USER]}, "message 0 is an assistant turn that answers nothing"),
        ({"messages": [USER, SAID | {"content": ""}]}, "message 1 is an assistant turn that says nothing"),
        ({"messages": [USER, SAID | {"tool_calls": [1]}]}, "message 1 must have a `role` .* and nothing else"),
        ({"messages": [USER, {"role": "bot", "content": "y"}]}, "message 1 must have a `role`"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}, SAID]}, "message 0 must have a `role`"),
    ],
)
def test_a_wrong_row_is_one_line_with_its_place(tmp_path: Path, model: Path, row: Any, why: str) -> None:
    run = run_with(tmp_path, model, [{"problem_id": "a", "solution": "2"}, row])
    with pytest.raises(DataError, match=f"^{tmp_path}/shown.jsonl: line 2: {why}"):
        made(run)
    assert not run.groups(0).exists()


def test_a_file_that_is_not_there_is_named(tmp_path: Path, model: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere.jsonl: no such file of demonstrations; check rounds.0.rows"):
        made(run_with(tmp_path, model, [], demonstrations=str(tmp_path / "nowhere.jsonl")))
