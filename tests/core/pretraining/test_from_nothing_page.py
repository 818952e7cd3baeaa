"""docs/from_nothing.md: its solutions are read, its program makes what its experiment asks for, its commands exist."""

import json
import re
import runpy
import subprocess
from pathlib import Path

import pytest

from oapl_core import plugins
from oapl_core.pretraining.pretrain import read_solved
from oapl_core.run_folder.opening import check
from oapl_core.settings.experiment_file import load_experiment
from oapl_core.settings.rehearsal import rehearsal
from oapl_extras.plan.plan_command import lines
from tests.whole_run import ROOT, command

PAGE = (ROOT / "docs/from_nothing.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    found: list[str] = re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)
    assert len(found) == 1
    return found[0]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "make.py").write_text(block("python"))
    (tmp_path / "roman.toml").write_text(block("toml"))
    runpy.run_path(str(tmp_path / "make.py"))
    return tmp_path


def test_the_lines_it_shows_are_read(tmp_path: Path) -> None:
    (tmp_path / "shown.jsonl").write_text(block("json"))
    shown = read_solved(tmp_path / "shown.jsonl")
    assert [(one.statement, len(one.solutions)) for one in shown] == [
        ("7 in Roman numerals?", 2),
        ("9 in Roman numerals?", 1),
    ]


def test_its_program_makes_what_its_experiment_asks_for(folder: Path) -> None:
    experiment = load_experiment(Path("roman.toml"))
    check(experiment)
    text = "\n".join(lines(experiment))
    assert "159 training, 0 validation, 40 held-out" in text
    assert "warning" not in text and "refused" not in text
    answers = {
        json.loads(line)["statement"]: json.loads(line)["answer"]
        for line in Path("train.jsonl").read_text().splitlines()
    }
    solved = read_solved(Path("solutions.jsonl"))
    right = [solution == f"\\boxed{{{answers[one.statement]}}}" for one in solved for solution in one.solutions]
    assert len(right) == 318
    assert 0.25 < sum(right) / len(right) < 0.42, "a third is right"
    assert "same_text" in plugins.names("checker")
    small = rehearsal(experiment, 8)
    assert small.pretrain and small.pretrain.epochs == 1


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_its_commands_run_to_a_report(folder: Path) -> None:
    commands = [line.removeprefix("$ oapl ").split() for line in block("console").splitlines()]
    assert [words[0] for words in commands] == ["plan", "run"]
    for arguments in commands:
        done = subprocess.run(command(arguments), cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    assert (folder / "data/runs/roman-seed0/report/index.html").is_file()
