"""`oapl judge --make-canaries`: the best and worst stored answers by the run's own judge; bad input is one line."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oapl_core.errors import ConfigError, OaplError, StageFailed
from oapl_core.run_folder.run import Run
from oapl_core.settings.experiment_file import parse_as
from oapl_core.settings.reward import RewardConfig
from oapl_core.tables import ROLLOUTS, read_table
from oapl_core.verdicts.rewards import Rewarder
from oapl_core.verdicts.workers.function_pool import FunctionCall
from oapl_extras.judge.judge_command import judge
from oapl_extras.judge.made_canaries import choose, make
from tests.core.verdicts.judge_server import serving
from tests.lasting_maths import lasting_maths as lasting_maths
from tests.synthetic_run import Sizes, write_synthetic_run

pytestmark = pytest.mark.usefixtures("lasting_maths")

PROMPT = "{{ problem.statement }} ({{ verdict.outcome }})\n---\n{{ response }}"


def judged_run(folder: Path, url: str, until: str = "rollouts", **settings: Any) -> Run:
    """A run whose answers were sampled, and which a language model is to judge."""
    run = write_synthetic_run(folder / "runs", Sizes(train=4, validation=2, heldout=2), until=until)
    (folder / "judge.jinja").write_text(PROMPT)
    values: dict[str, Any] = {
        "url": url,
        "model": "m",
        "prompt": str(folder / "judge.jinja"),
        "canaries": str(folder / "canaries.jsonl"),
        "cache": str(folder / "replies.sqlite"),
        "scale": 10,
        "retries": 0,
    }
    reward = parse_as(RewardConfig, {"judge": values | settings}, "test")
    return Run(run.root, run.config.model_copy(update={"reward": reward}))


def by_length(request: dict[str, Any], _before: int) -> str:
    """Longer answers are better, from 0 to 10."""
    return f"Score: {len(request['messages'][-1]['content'].partition('---')[2]) % 11}"


def test_the_best_and_the_worst_are_written_and_are_what_the_judge_is_held_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(by_length) as server:
        run = judged_run(tmp_path, server.url)
        path = tmp_path / "canaries.jsonl"
        judge(run, path, 12)
        said = capsys.readouterr().out
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        texts = {
            row["text"] for part in run.rollouts(0).glob("*.parquet") for row in read_table(part, ROLLOUTS).to_pylist()
        }
        assert {row["response"] for row in rows} <= texts
        assert any("at_least" in row for row in rows) and any("at_most" in row for row in rows)
        assert all(row["problem"]["statement"] and row["verdict"]["outcome"] for row in rows)
        assert not any("tests" in row["problem"] for row in rows), "the template does not show them"
        assert said.count("[judge]") == len(rows) and "kept as at_least" in said
        asked = sum(server.seen.values())
        assert run.config.reward
        with Rewarder(run.config.reward, 64, 1) as rewarder:
            rewarder.check_canaries()
        assert sum(server.seen.values()) == asked + len(rows), "the file is one that the judge can be asked about"
        server.reply = lambda *_: "Score: 5"
        with Rewarder(run.config.reward, 64, 1) as rewarder, pytest.raises(StageFailed, match="gave 0.5 for canary 1"):
            rewarder.check_canaries()


def calls(**values: float) -> list[tuple[float, FunctionCall]]:
    return [(value, FunctionCall({"problem_id": text}, text, {})) for text, value in values.items()]


def test_bounds_leave_a_third_of_the_distance_and_each_text_is_taken_once() -> None:
    values = calls(a=0.0, b=0.05, c=0.1, d=0.5, e=0.9, f=0.85) + calls(a=0.0, e=0.9)
    found = choose(values)
    assert [(one.call.text, one.key, one.bound) for one in found] == [
        ("e", "at_least", 0.6),
        ("f", "at_least", 0.6),
        ("a", "at_most", 0.3),
        ("b", "at_most", 0.3),
    ]


def refused(call: Callable[[], object], error: type[OaplError]) -> str:
    with pytest.raises(error) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.slow
def test_bad_input_is_one_line_and_nothing_is_written(tmp_path: Path) -> None:
    path = tmp_path / "canaries.jsonl"
    with serving(lambda *_: "Score: 5") as server:
        run = judged_run(tmp_path, server.url)
        assert "gave 0.5 to each of" in refused(lambda: make(run, path, 8), ConfigError)
        server.reply = lambda *_: "no number"
        run = replace_judge(run, cache=tmp_path / "other.sqlite")
        assert "gave no number for any of" in refused(lambda: make(run, path, 8), StageFailed)
        assert "its folder is not there" in refused(lambda: make(run, tmp_path / "no" / "c.jsonl", 8), ConfigError)
        assert not path.exists()
        path.write_text("mine")
        assert "is there already" in refused(lambda: make(run, path, 8), ConfigError)
        assert path.read_text() == "mine"
    bare = Run(run.root, run.config.model_copy(update={"reward": None}))
    assert "has no [reward.judge]" in refused(lambda: make(bare, path, 8), ConfigError)
    assert not list(tmp_path.glob(".tmp*"))


def replace_judge(run: Run, **settings: Any) -> Run:
    """The run with another setting of its judge."""
    assert run.config.reward and run.config.reward.judge
    reward = RewardConfig(judge=run.config.reward.judge.model_copy(update=settings))
    return Run(run.root, run.config.model_copy(update={"reward": reward}))


def test_a_run_without_rollouts_says_how_to_get_some(tmp_path: Path) -> None:
    run = judged_run(tmp_path, "http://127.0.0.1:1/v1", until="problems")
    said = refused(lambda: make(run, tmp_path / "canaries.jsonl", 8), ConfigError)
    assert "has no rollouts yet; `oapl run` samples them" in said


def test_a_missing_file_of_canaries_names_the_command(tmp_path: Path) -> None:
    run = judged_run(tmp_path, "http://127.0.0.1:1/v1", until="problems")
    assert run.config.reward
    with Rewarder(run.config.reward, 64, 1) as rewarder:
        said = refused(rewarder.check_canaries, ConfigError)
    assert f"`oapl judge RUN --make-canaries {tmp_path}/canaries.jsonl`" in said
