"""A filter of a person's own: what it is shown, what it may say, and one line for everything else."""

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from oapl_core import tables
from oapl_core.errors import ConfigError
from oapl_core.groups.build import build
from oapl_core.run_folder.opening import check
from oapl_core.run_folder.run import Run
from tests.core.groups.test_build import details, make_run, put, rollout, verdict, write_round

SCENE: dict[str, list[float]] = {"easy": [1.0, 1.0, 0.0], "hard": [0.0, 1.0]}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, where a person's own modules lie."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    sys.modules.pop("mine", None)


def filtered(folder: Path, source: str, scene: Mapping[str, list[float]] = SCENE) -> Run:
    """Groups of ``scene``, from a module ``mine`` with that source."""
    folder.mkdir(exist_ok=True)
    Path("mine.py").write_text(source)
    run = make_run(folder, "mine:f")
    problem: dict[str, Any] = dict.fromkeys(name for name, _ in tables.PROBLEMS) | {"split": "train", "tests": []}
    rows = [problem | {"problem_id": name, "info": json.dumps({"level": len(name)})} for name in scene]
    put(run, run.problems, tables.PROBLEMS, rows)
    parts = [[rollout(name, i, text=f"{name} {i}") for i in reversed(range(len(scene[name])))] for name in scene]
    write_round(run, parts, [[verdict(name, i, reward) for i, reward in enumerate(scene[name])] for name in scene])
    build(run, 0)
    return run


SEEN = """
import json

def f(problem, rows):
    with open("seen.jsonl", "a") as file:
        arrays = [(r["response_ids"].tolist(), r["logprobs"].tolist()) for r in rows]
        shown = [(r["text"], r["reward"], r["correct"], r["outcome"], *a) for r, a in zip(rows, arrays)]
        file.write(json.dumps([problem["problem_id"], problem["level"], "tests" in problem, shown]) + "\\n")
    return "known" if problem["problem_id"] == "easy" else [None, None]
"""


def test_it_sees_the_problem_and_whole_rows_in_order(here: Path) -> None:
    run = filtered(here, SEEN)
    easy, hard = map(json.loads, (here / "seen.jsonl").read_text().splitlines())
    assert easy[:3] == ["easy", 4, False]
    assert [row[0] for row in easy[3]] == ["easy 0", "easy 1", "easy 2"]
    assert hard[3][1] == ["hard 1", 1.0, True, "passed", [5, 1], [-0.5, -2.0]]
    assert pl.read_parquet(run.groups(0))["rollout_id"].to_list() == ["hard/0", "hard/1"]
    assert details(run)["dropped"] == {"known": 3}


def test_an_edited_filter_makes_the_groups_again(here: Path) -> None:
    run = filtered(here, "def f(problem, rows):\n    return None\n")
    assert details(run)["kept_rollouts"] == 5
    sys.modules.pop("mine")
    (here / "mine.py").write_text("def f(problem, rows):\n    return 'none of them, at all'\n")
    build(run, 0)
    assert details(run)["dropped"] == {"none of them, at all": 5}


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ("return rows[7]", r"IndexError: list index out of range \(mine.py, line 2\); mend it"),
        ("return True", "return None, a reason, or a list with one of them for each row, not True"),
        ("return [None]", "returned 1 reasons for 3 rows"),
        ("return [None, 7, None]", "of easy/1 it returned 7, which is neither None nor a word or a few"),
        ("return ''", "of easy/0 it returned '', which is neither None nor a word"),
        ("return 'two\\nlines'", "which is neither None nor a word"),
        ("return 'truncated'", "a reason that counts something else already"),
    ],
)
def test_what_it_must_not_do_is_one_line_with_problem_and_row(here: Path, body: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint) as error:
        filtered(here, f"def f(problem, rows):\n    {body}\n")
    assert "`rounds.keep`: mine:f, problem 'easy' (3 rows from easy/0 on)" in str(error.value)
    assert "\n" not in str(error.value)
    assert not list(here.rglob("3_groups*")), "nothing is left behind"


def test_numbers_in_reasons_are_refused_before_they_fill_the_ledger(here: Path) -> None:
    source = "seen = []\ndef f(problem, rows):\n    seen.extend(rows)\n    return f'after {len(seen)}'\n"
    with pytest.raises(ConfigError, match="gives more than 20 different reasons, such as 'after"):
        filtered(here, source, {f"p{i:02d}": [0.0, 1.0] for i in range(21)})
    sys.modules.pop("mine")
    run = filtered(here / "twenty", source, {f"p{i:02d}": [0.0, 1.0] for i in range(20)})
    assert sum(details(run)["dropped"].values()) == 40


def test_one_that_cannot_be_imported_is_refused_before_anything_runs(here: Path) -> None:
    (here / "mine.py").write_text("import a_module_that_is_not_there\n")
    (here / "unused.jsonl").write_text("")
    with pytest.raises(ConfigError, match=r"`rounds.0.keep`: mine:f cannot be imported \(ModuleNotFoundError"):
        check(make_run(here, "mine:f").config)
