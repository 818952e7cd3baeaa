"""`oapl problems` and `oapl prompt`: a published set becomes one of ours, and what a model is shown of it."""

import json
from pathlib import Path

from oapl_core.problems.problem_set import SPLITS, read_problem_set
from tests.deployments.test_cli import complaint
from tests.extras.problem_sets import foreign_rows as rows
from tests.extras.problem_sets.foreign_rows import write_rows
from tests.tiny_model import write_tiny_model
from tests.whole_run import called


def livecodebench(folder: Path) -> Path:
    """A release of two files."""
    folder.mkdir()
    days = {"a": "2024-07-31", "b": "2024-08-01", "arc189_a": "2024-09-01"}
    write_rows(folder / "test.jsonl", *(rows.livecodebench(name, day) for name, day in days.items()))
    like_b = rows.livecodebench("3000", "2024-10-01", functional=True, question_content="Statement of b: add b.")
    write_rows(folder / "test2.jsonl", like_b)
    return folder


def test_sets_are_listed_and_a_window_of_a_release_is_imported_and_shown(tmp_path: Path) -> None:
    assert "livecodebench/code_generation_lite" in called("problems").stdout
    folder, target = livecodebench(tmp_path / "lite"), tmp_path / "lcb.jsonl"
    command = ["problems", "livecodebench", f"path={folder}", "--to", str(target), "release=v2"]
    done = called(*command, "window=2024-08-01:2025-02-01", "faulty=drop")
    assert done.returncode == 0, done.stderr
    for line in (
        f"{target}: kept 2 of 4 problems",
        "dropped       1  outside of the window",
        "dropped       1  faulty upstream: a wrong expected output",
        "its publishers say 511 rows",
    ):
        assert line in done.stdout, done.stdout
    assert [problem["problem_id"] for problem in read_problem_set(target, "heldout")] == [
        "livecodebench/b",
        "livecodebench/3000",
    ]
    shown = called("prompt", str(target), "prompt_style=livecodebench", "--show", "2").stdout
    assert shown.count("### Question:") == 2
    assert "class Solution:" in shown


def test_a_prompt_is_shown_as_the_experiments_model_reads_it(tmp_path: Path) -> None:
    write_tiny_model(tmp_path / "model")
    (tmp_path / "model" / "chat_template.jinja").unlink()
    (tmp_path / "own.jinja").write_text("Q: {{ statement }}\nA:\n")
    row = {"problem_id": "p", "kind": "math", "statement": "2 + 2?", "answer": "4"}
    sets = {split: str(write_rows(tmp_path / f"{split}.jsonl", row | {"problem_id": split})) for split in SPLITS}
    problems = {**sets, "template": str(tmp_path / "own.jinja")}
    lines = [f"{key} = {json.dumps(value)}" for key, value in problems.items()]
    lines += ['examples = [{statement = "1 + 1?", solution = "2"}]']
    (tmp_path / "e.toml").write_text("\n".join([f'name = "e"\nmodel = "{tmp_path}/model"\n[problems]', *lines]) + "\n")
    shown = called("prompt", str(tmp_path / "e.toml")).stdout
    assert "\nQ: 1 + 1?\nA: 2\n\nQ: 2 + 2?\nA:\n--- " in shown
    assert "prompts are plain text without a beginning-of-text token: the model has no chat template" in shown
    assert "an answer ends with '<|im_end|>'" in shown
    (tmp_path / "own.jinja").write_text("Q: {{ question }}")
    refused = called("prompt", str(tmp_path / "e.toml"))
    assert refused.returncode == 2
    assert "own.jinja:1: unknown field `question`" in refused.stderr
    (tmp_path / "own.jinja").write_text("Q: {{ statement }}")
    (tmp_path / "train.jsonl").unlink()
    refused = called("prompt", str(tmp_path / "e.toml"))
    assert (refused.returncode, refused.stderr) == (
        2,
        f"error: {tmp_path}/train.jsonl: no such problem set; check [problems] in the experiment\n",
    )


def test_a_prompt_is_of_the_first_problem_that_is_trained_on_read_by_the_experiments_columns(tmp_path: Path) -> None:
    row = {"id": "s", "riddle": "Which is the sum of 1 and 2?", "question": "never shown", "answer": "3"}
    training = write_rows(tmp_path / "train.jsonl", row, row | {"id": "t", "riddle": "And of 2 and 2?"})
    (tmp_path / "left-out.jsonl").write_text('{"problem_id": "s"}\n')
    model = write_tiny_model(tmp_path / "model")
    (tmp_path / "e.toml").write_text(
        f'name = "e"\nmodel = "{model}"\n[problems]\ntrain = "{training}"\nheldout = "{training}"\n'
        f'prompt_style = "plain"\ncolumns = {{statement = "riddle", problem_id = "id"}}\n'
        f'exclude = "{tmp_path}/left-out.jsonl"\n'
    )
    shown = called("prompt", str(tmp_path / "e.toml"), "--show", "9")
    assert (shown.stdout.count("--- "), "And of 2 and 2?" in shown.stdout) == (3, True), shown.stderr


def test_solutions_are_run_and_other_sets_compared(tmp_path: Path) -> None:
    evaluation = write_rows(tmp_path / "heldout.jsonl", {"problem_id": "e", "statement": "Add them all up."})
    source = write_rows(
        tmp_path / "taco.jsonl", rows.taco(), rows.taco_call(), rows.taco_call(problem="Other.", solutions=["1"])
    )
    command = ["problems", "deepcoder-taco", f"path={source}", "--to", str(tmp_path / "out.parquet"), "--check"]
    done = called(*command, "--evaluation", str(evaluation), "minimum_tests=5")
    assert done.returncode == 0, done.stderr
    assert "kept 1 of 3 problems" in done.stdout
    assert "1  in an evaluation set" in done.stdout
    assert "1  no reference solution passes every test" in done.stdout
    origin = json.loads((tmp_path / "out.parquet.origin.json").read_text())
    assert origin["choice"]["minimum_tests"] == 5


def test_what_cannot_be_done_is_one_line(tmp_path: Path) -> None:
    source = write_rows(tmp_path / "a.jsonl", rows.taco())
    given = [f"path={source}"]
    out = ["--to", str(tmp_path / "out.jsonl")]
    for arguments, expected in [
        (["nothing", *given, *out], "there is no problem set 'nothing'"),
        (["deepcoder-taco", *given], "--to FILE.jsonl"),
        (["deepcoder-taco", *given, "--to", str(tmp_path / "out.csv")], "name the file .jsonl"),
        (["deepcoder-taco", *given, *out, "window=20:24"], "write FIRST:END"),
        (["deepcoder-taco", *given, *out, "release=v2"], "has no release"),
        (["deepcoder-taco", *given, *out, "faulty=maybe"], "faulty"),
        (
            ["deepcoder-taco", *given, *out, "--faulty", "drop"],
            "--faulty: is no option any more; write faulty=VALUE",
        ),
        (["math500", *given, *out], "is this a file of math500?"),
        (["deepcoder-taco", *out], "revision"),
    ]:
        assert expected in complaint(called("problems", *arguments))
    assert not list(tmp_path.glob("out*"))
