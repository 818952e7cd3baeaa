"""Commands of bench: what they refuse, say and keep, without the measurement; and that `make bench` finds its tests."""

import json
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bench import math500, models, models_page, problem_import, store, trainer
from oapl_core import tables


def test_make_bench_finds_all_that_its_tests_ask_for(root: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "--setup-plan", "-p", "no:cacheprovider", "-m", "bench", "bench"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:]


def test_a_page_with_a_column_of_before_is_not_written_without_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["math500"])
    monkeypatch.setattr(math500, "counted", lambda _: pytest.fail("judged before it was refused"))
    with pytest.raises(SystemExit):
        math500.main()
    assert "--before FOLDER" in capsys.readouterr().err


def test_the_page_of_imports_says_of_what_its_times_are(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(problem_import, "CASES", ())
    written = (root / problem_import.PAGE).read_text().splitlines()
    assert [line for line in problem_import.page().splitlines() if line not in written] == []
    assert [line for line in written if line not in problem_import.page().splitlines() and line[:1] != "|"] == []


@pytest.mark.parametrize(
    ("code", "errors", "said"),
    [
        (1, "a\nImportError: b\n", "ImportError: b"),
        (-9, "", "killed by signal 9"),
        (2, "", "exit code 2 without a word"),
    ],
)
def test_a_trainer_that_fails_is_left_out_with_a_reason_and_ours_ends_the_comparison(
    code: int,
    errors: str,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    failed: subprocess.CompletedProcess[str] = subprocess.CompletedProcess([], code, "", errors)
    monkeypatch.setattr(trainer, "write_model", lambda *_, **__: None)
    monkeypatch.setattr(trainer, "make_rollouts", lambda *_: [])
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
    options = Namespace(threads=1, rounds=1, steps=1, authors=None, site=None, trl=None, budget=8)
    trainer.compare(["hf8"], tmp_path, options)
    assert capsys.readouterr().out == f"hf8: left out: {said}\n"
    with pytest.raises(SystemExit, match=f"^ours: {said}$"):
        trainer.compare(["ours"], tmp_path, options)


def test_the_store_without_checksums_differs_from_ours_in_nothing_else(tmp_path: Path) -> None:
    answers = store.Answers(50)
    made = [answers.row(i, 0, "0" * 16) for i in range(300)]
    table = pa.Table.from_pylist(made, schema=tables.schema_of(tables.ROLLOUTS))
    store.ours(tmp_path / "with", table)
    store.without_checksums(tmp_path / "without", table)
    with_them, without = (_layout(tmp_path / name) for name in ("with", "without"))
    assert with_them == without
    assert (tmp_path / "with").stat().st_size > (tmp_path / "without").stat().st_size


def _layout(path: Path) -> list[Any]:
    """Encodings and statistics of each column of each row group."""
    whole = pq.ParquetFile(path).metadata
    groups = [whole.row_group(i) for i in range(whole.num_row_groups)]
    columns = [group.column(i) for group in groups for i in range(group.num_columns)]
    return [(column.path_in_schema, column.encodings, column.is_stats_set, column.num_values) for column in columns]


def test_a_case_of_the_models_keeps_its_own_versions_and_is_kept_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = tmp_path / "raw"
    older = {"family": "qwen3", "dtype": "bfloat16", "versions": {"torch": "1.0"}}
    raw.write_text(json.dumps({"cases": [older]}))

    def run_case(family: str, dtype: str, _: bool) -> dict[str, Any]:
        if family == "qwen3":
            raise KeyboardInterrupt
        return {"family": family, "dtype": dtype}

    monkeypatch.setattr(models, "run_case", run_case)
    monkeypatch.setattr(models, "prepare", lambda _: None)
    monkeypatch.setattr(models, "version", lambda name: f"2.0 of {name}")
    monkeypatch.setattr(sys, "argv", ["models", "--families", "qwen2", "qwen3", "--dtypes", "float32", f"--raw={raw}"])
    with pytest.raises(KeyboardInterrupt):
        models.main()
    cases = json.loads(raw.read_text())["cases"]
    assert [(case["family"], case["versions"]["torch"]) for case in cases] == [
        ("qwen2", "2.0 of torch"),
        ("qwen3", "1.0"),
    ]
    assert "torch 2.0 of torch and 1.0" in models_page._versions(cases)
