"""docs/data.md: every block is run. Settings are read, Python is run on a run folder, commands are those of `oapl`."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from oapl_core import tables
from oapl_core.groups.build import build
from oapl_core.problems.prepare import prepare
from oapl_core.rollouts.difficulty import draw, draw_rows, known_so_far
from oapl_core.run_folder.draws import DRAWS, draw_file
from oapl_core.run_folder.run import Run
from oapl_core.settings.experiment_file import load_experiment
from tests.core.groups.test_replay import PROBLEMS as NAMES
from tests.core.groups.test_replay import make_run, write_rounds
from tests.extras.exchange.exchanged import make_run as make_sampled_run
from tests.extras.exchange.exchanged import sample
from tests.extras.problem_sets.test_screening import BAD, GOOD
from tests.tiny_model import write_tiny_model
from tests.whole_run import called


def blocks(root: Path, language: str) -> list[str]:
    found: list[str] = re.findall(rf"```{language}\n(.*?)```", (root / "docs/data.md").read_text(), flags=re.DOTALL)
    return found


def test_settings_are_those_of_an_experiment(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    read = []
    for text in blocks(root, "toml"):
        sets = '[problems]\ntrain = "t.jsonl"\nvalidation = "v.jsonl"\nheldout = "h.jsonl"\n'
        whole = 'name = "e"\nmodel = "m"\n' + text + (sets if "[problems]" not in text else "")
        (tmp_path / "e.toml").write_text(whole)
        read.append(load_experiment(tmp_path / "e.toml", []))
    scoring, replaying, drawing, excluding = read
    assert scoring.reward and scoring.reward.function
    assert [one.replay and one.replay.share for one in replaying.rounds] == [None, None, 0.3]
    assert [one.draw for one in drawing.rounds] == ["random"] + ["difficulty"] * 8
    assert excluding.problems.exclude == (Path("screened.jsonl"),)


def test_python_runs_on_a_run_folder(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path)
    write_rounds(run)
    build(run, 2)
    one = {"problems": 10, "draw": "difficulty"}
    drawing = Run(run.root, run.config.model_copy(update={"rounds": make_run_rounds(tmp_path, one)}))
    found = draw(NAMES, dict.fromkeys(NAMES, "demo"), known_so_far(drawing, 1), drawing, 1)
    with run.writing(draw_file(run, 1), {}, {}) as draft:
        draft.rows = tables.write_table(draft.path, DRAWS, draw_rows(found, NAMES, dict.fromkeys(NAMES, "demo")))
    space: dict[str, Any] = {"run": run}
    for text in blocks(root, "python"):
        exec(compile(text, "docs/data.md", "exec"), space)
    printed = capsys.readouterr().out
    assert "bbb" in printed
    assert "waiting" in printed
    assert isinstance(space["draw"], pl.DataFrame)


def make_run_rounds(folder: Path, one: dict[str, Any]) -> Any:
    (folder / "other").mkdir()
    return make_run(folder / "other", rounds=[one] * 3).config.rounds


@pytest.mark.slow
def test_commands_do_what_the_page_says(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them, in order, in a folder that has what they name."""
    monkeypatch.chdir(tmp_path)
    model = write_tiny_model(tmp_path / "model")
    asked = make_sampled_run(tmp_path, model, "asked")

    prepare(asked)
    sample(asked)
    (tmp_path / "mine.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in [*GOOD, BAD["echo"][0], BAD["weak"][0]])
    )
    printed = ""
    # the tasks of reasoning-gym have a test of their own, which needs the package
    lines = (line for text in blocks(root, "console") for line in text.splitlines() if "oapl gym" not in line)
    for line in lines:
        done = run_line(line.replace("RUN", str(asked.root)), tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        printed += done.stdout
    listed = [json.loads(text)["problem_id"] for text in (tmp_path / "screened.jsonl").read_text().splitlines()]
    assert listed == ["echo", "weak"]
    assert "9 answers" in printed
    assert "0 contain 30 % or more" in printed


def run_line(line: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    command, *words = line.removeprefix("$ ").split()
    assert command == "oapl"
    names = [*(path.name for path in folder.iterdir()), "screened.jsonl"]
    parts = [word.rpartition("=") for word in words]
    is_place = [key == "path" or (not key and end in names) for key, _, end in parts]
    ends = (folder / end if place else end for place, (_, _, end) in zip(is_place, parts, strict=True))
    return called(*(f"{key}{equals}{end}" for (key, equals, _), end in zip(parts, ends, strict=True)))
