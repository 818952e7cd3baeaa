"""docs/extras/filters.md: its tables are what the filter does, and its blocks are read or run."""

import re
import sys
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from oapl_core import tables
from oapl_core.groups.build import build
from oapl_core.groups.selection import select
from oapl_core.run_folder.run import Run
from oapl_core.settings.experiment_file import parse_experiment
from tests.architecture.sources import ROOT
from tests.core.groups.test_build import put, rollout, verdict, write_round
from tests.core.groups.test_filters import SHIPPED, frames

PAGE = (ROOT / "docs/extras/filters.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def table(text: str, beginning: str) -> list[list[str]]:
    """Cells of the rows of the table whose head begins so, with the head first."""
    lines = text[text.index(beginning) :].split("\n\n")[0].splitlines()
    head, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [head, *rows]


def settings(title: str) -> list[dict[str, Any]]:
    return [tomllib.loads(text)["rounds"][0] for text in re.findall(r"```toml\n(.*?)```", section(title), re.DOTALL)]


def make_run(folder: Path, one: dict[str, Any]) -> Run:
    problems = dict.fromkeys(("train", "validation", "heldout"), folder / "unused.jsonl")
    values = {"name": "g", "runs_dir": folder, "model": folder, "problems": problems, "rounds": [one]}
    return Run.create(parse_experiment(values, "test"))


def reason(rewards: list[float], keep: str, band: tuple[float, float] | None = None) -> str:
    """What the page's tables say of a group: kept, or the one reason of its rows."""
    _, counts = select(*frames([list(rewards)]), [keep], "keep", band)
    return next(iter(counts.dropped), "kept")


def test_the_tables_of_rewards_are_what_the_filters_do() -> None:
    head, *rows = table(section("By rewards"), "| rewards of a group |")
    assert (
        tuple(head[1:]) == SHIPPED == tuple(row[0].strip("`") for row in table(section("By rewards"), "| `keep` |")[1:])
    )
    for rewards, *expected in rows:
        assert [reason([float(x) for x in rewards.split(",")], keep) for keep in head[1:]] == expected, rewards
    (head, *rows) = table(section("By pass rate"), "| rewards of a group |")
    low, high = tomllib.loads(head[1])["pass_rate"]
    for rewards, expected_reason in rows:
        assert reason([float(x) for x in rewards.split(",")], "all", (low, high)) == expected_reason, rewards


def test_the_settings_of_the_page_are_read(tmp_path: Path) -> None:
    read = [
        make_run(tmp_path / str(i), one).config.rounds[0]
        for i, one in enumerate(settings("By rewards") + settings("By pass rate"))
    ]
    assert [(one.keep, one.pass_rate) for one in read] == [("spread", None), ("spread", (0.1, 0.9))]


def test_the_page_s_own_filters_drop_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = section("A filter of your own")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "my_filters.py").write_text(re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0])
    _, *rows = table(text, "| answers of a group")
    run = make_run(tmp_path, settings("A filter of your own")[0])
    parts, judged, expected = [], [], dict[str, str]()
    for number, (answers, said) in enumerate(rows):
        name, found = f"p{number}", re.findall(r"`([^`]*)` (\d+) (\S+) ([-.\d]+)", answers)
        expected |= {f"{name}/{i}": one.strip() for i, one in enumerate(said.split(","))}
        made = [{"text": t, "response_ids": [1] * int(n), "logprobs": [float(p)] * int(n)} for t, n, _, p in found]
        parts.append([rollout(name, i, **one) for i, one in enumerate(made)])
        judged.append([verdict(name, i, float(reward)) for i, (_, _, reward, _) in enumerate(found)])
    assert len(expected) == sum(map(len, parts)), "the page says what becomes of each answer"
    problem: dict[str, Any] = dict.fromkeys(column for column, _ in tables.PROBLEMS) | {"split": "train", "tests": []}
    put(run, run.problems, tables.PROBLEMS, [problem | {"problem_id": f"p{n}"} for n in range(len(rows))])
    write_round(run, parts, judged)
    build(run, 0)
    sys.modules.pop("my_filters")
    counts = Counter(expected.values())
    assert pl.read_parquet(run.groups(0)).height == counts.pop("kept")
    assert run.ledger.artifacts()[run.name(run.groups(0))].details["dropped"] == counts


def test_nothing_left_is_said_in_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (lines,) = re.findall(r"```console\n(.*?)```", section("When nothing is left"), re.DOTALL)
    run = make_run(tmp_path, {"keep": "spread"})
    rows = [[rollout(f"p{g}", i) for i in range(4)] for g in range(2)]
    write_round(run, rows, [[verdict(f"p{g}", i, 0.0) for i in range(4)] for g in range(2)])
    build(run, 0)
    assert lines in capsys.readouterr().out.replace("progress | ", "")
