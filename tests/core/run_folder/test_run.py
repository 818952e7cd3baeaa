"""Artifacts: atomic, recorded, and stale as soon as anything they depend on changes."""

import json
import os
import shutil
from pathlib import Path

import pytest

from oapl_core.errors import ConfigError, DataError
from oapl_core.model_files.model_folder import policy_hash
from oapl_core.run_folder.ledger import Entry, ForkEntry, RemovalEntry, StageEntry, SupersededEntry
from oapl_core.run_folder.run import Run
from oapl_core.settings.experiment import Experiment
from oapl_core.settings.experiment_file import parse_experiment


def experiment(tmp_path: Path, **changes: object) -> Experiment:
    values = {
        "name": "t",
        "model": "m",
        "runs_dir": str(tmp_path / "runs"),
        "problems": {"train": "a", "validation": "b", "heldout": "c"},
        **changes,
    }
    return parse_experiment(values, "test")


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run.create(experiment(tmp_path))


def write(run: Run, text: str = "x", config: int = 1) -> Path:
    with run.writing(run.groups(0), {"in": "1"}, {"c": config}) as draft:
        draft.path.write_text(text)
        draft.rows, draft.details = 3, {"kept": 3}
    return run.groups(0)


def test_a_written_artifact_is_done_and_says_what_it_is(run: Run) -> None:
    path = write(run)
    assert path.read_text() == "x"
    assert run.is_done(path, {"in": "1"}, {"c": 1})
    entry = run.ledger.artifacts()["round_00/3_groups.parquet"]
    assert (entry.rows, entry.details) == (3, {"kept": 3})


def test_other_inputs_or_settings_make_it_stale(run: Run) -> None:
    path = write(run)
    assert not run.is_done(path, {"in": "2"}, {"c": 1})
    assert not run.is_done(path, {"in": "1"}, {"c": 2})


def test_an_edited_or_removed_artifact_is_not_done(run: Run) -> None:
    path = write(run)
    path.write_text("y")
    assert not run.is_done(path, {"in": "1"}, {"c": 1})
    path.unlink()
    assert not run.is_done(path, {"in": "1"}, {"c": 1})


def test_a_touched_but_equal_artifact_is_still_done(run: Run) -> None:
    path = write(run)
    os.utime(path, (1, 1))
    assert run.is_done(path, {"in": "1"}, {"c": 1})


def test_a_failing_writer_leaves_the_old_artifact_and_no_temporary_file(run: Run) -> None:
    path = write(run)
    with pytest.raises(RuntimeError), run.writing(path, {}, {}) as draft:
        draft.path.write_text("half")
        raise RuntimeError
    assert path.read_text() == "x"
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_a_folder_is_replaced_as_a_whole(run: Run) -> None:
    for names in (("a", "b"), ("a",)):
        with run.writing(run.checkpoint(0, 1), {}, {}) as draft:
            draft.path.mkdir()
            for name in names:
                (draft.path / name).write_text(name)
    assert [p.name for p in run.checkpoint(0, 1).iterdir()] == ["a"]
    assert run.is_done(run.checkpoint(0, 1), {}, {})


def test_reopening_with_other_settings_names_them(run: Run, tmp_path: Path) -> None:
    write(run)
    assert Run.create(experiment(tmp_path)).config == run.config
    with pytest.raises(ConfigError, match=r"training\.learning_rate was 1e-06, now 0\.1"):
        Run.create(experiment(tmp_path, training={"learning_rate": 0.1}))


def test_a_run_is_shown_as_its_folder_and_not_as_its_settings(run: Run) -> None:
    assert repr(run) == str(run) == f"Run({str(run.root)!r})"
    assert repr([Run.open(run.root)]) == f"[Run({str(run.root)!r})]"


CORRECTED = {"train": "mended", "validation": "b", "heldout": "c"}


@pytest.mark.parametrize("failed", [0, 1, 2])
def test_a_run_in_which_nothing_was_made_may_change_its_settings(run: Run, tmp_path: Path, failed: int) -> None:
    for _ in range(failed):
        run.ledger.append(StageEntry("problems.prepare", 1.0, 2, "a: line 141: problem_id 'x' was used before"))
    told: list[str] = []
    again = Run.create(experiment(tmp_path, problems=CORRECTED), told.append)
    changed = (
        f"{run.root}: nothing was made with its settings yet, so they change: problems.train was ['a'], now ['mended']"
    )
    assert told == [changed]
    assert again.config.problems.train == Run.open(run.root).config.problems.train == (Path("mended"),)
    assert len(again.ledger.stages()) == failed
    Run.create(experiment(tmp_path, problems=CORRECTED), told.append)
    assert told == [changed], "once"


@pytest.mark.parametrize("how", ["made", "removed", "put aside", "shared"])
def test_whatever_was_made_keeps_the_settings(run: Run, tmp_path: Path, how: str) -> None:
    if how == "shared":
        run.ledger.append(ForkEntry("data/runs/other", 1, "sampling", []))
    else:
        name = run.name(write(run))
        sha256 = run.ledger.artifacts()[name].sha256
        entries: dict[str, Entry] = {
            "removed": RemovalEntry(name, sha256, 1, "all"),
            "put aside": SupersededEntry(name, sha256, "old"),
        }
        if how in entries:
            run.ledger.append(entries[how])
    told: list[str] = []
    with pytest.raises(ConfigError, match=r"problems\.train was \['a'\], now \['mended'\]"):
        Run.create(experiment(tmp_path, problems=CORRECTED), told.append)
    assert told == []
    assert Run.open(run.root).config.problems.train == (Path("a"),)


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is not a run folder"):
        Run.open(tmp_path)
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(DataError, match="is not readable"):
        Run.open(tmp_path)


def test_a_missing_input_is_named(run: Run) -> None:
    with pytest.raises(DataError, match=r"problems\.parquet: is missing"):
        run.inputs([run.problems])


def model_folder(path: Path) -> Path:
    path.mkdir()
    (path / "config.json").write_text(json.dumps({"a": 1}))
    (path / "model.safetensors").write_bytes(b"weights")
    (path / "tokenizer.json").write_text("{}")
    return path


def test_a_policy_is_its_weights_and_tokenizer_and_nothing_else(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "m")
    before = policy_hash(folder)
    copy = shutil.copytree(folder, tmp_path / "elsewhere")
    (copy / "README.md").write_text("moved")
    assert policy_hash(copy) == before
    (copy / "tokenizer.json").write_text("{ }")
    assert policy_hash(copy) != before
    (folder / "model.safetensors").write_bytes(b"Weights")
    assert policy_hash(folder) != before


@pytest.mark.parametrize(
    ("missing", "says"), [("config.json", "no config.json"), ("model.safetensors", "has no weights")]
)
def test_an_incomplete_model_folder_is_named(tmp_path: Path, missing: str, says: str) -> None:
    folder = model_folder(tmp_path / "m")
    (folder / missing).unlink()
    with pytest.raises(DataError, match=says):
        policy_hash(folder)
