"""One format number: a folder of another form is refused in one line that names the release that opens it."""

import json
from pathlib import Path
from typing import Any

import pytest

from oapl_core import tables
from oapl_core.errors import DataError
from oapl_core.evaluation.folders.folder import RECORD, EvaluationFolder
from oapl_core.run_folder.run import Run
from oapl_core.settings.experiment_file import FORMAT
from oapl_extras.compare.folder import Comparison
from oapl_extras.remote.mirror import Mirror
from tests.synthetic_run import Sizes, write_synthetic_run

OLDER = r"was made by oapl 0\.1\.0, which opens it \(format 1; this version has format 2\)$"
NEWER = r"was made by a later version of oapl: update this one \(format 3; this version has format 2\)$"


def marked(record: Path, number: Any) -> None:
    """Give a record another format; None: none, as release 0.1.0."""
    content = json.loads(record.read_text())
    assert content.pop("format") == FORMAT
    record.write_text(json.dumps(content if number is None else {"format": number, **content}))


@pytest.mark.parametrize(("number", "said"), [(None, OLDER), (1, OLDER), (3, NEWER)])
def test_a_run_of_another_format_is_refused_and_not_touched(number: Any, said: str, tmp_path: Path) -> None:
    run = write_synthetic_run(tmp_path / "runs", Sizes(train=2), until="rollouts")
    copy = tmp_path / "mirror" / run.root.name
    Mirror(f"file://{tmp_path}/mirror", run.root.name).update(run)
    marked(copy / "run.json", number)
    with pytest.raises(DataError, match=said):
        Mirror(f"file://{copy}").fetch(tmp_path / "here")
    assert not (tmp_path / "here" / "run.json").exists()
    marked(run.root / "run.json", number)
    before = {path: path.stat().st_mtime_ns for path in run.root.rglob("*")}
    with pytest.raises(DataError, match=rf"^{run.root}/run\.json: {said}"):
        Run.open(run.root)
    with pytest.raises(DataError, match=said):
        Run.create(run.config)
    assert {path: path.stat().st_mtime_ns for path in run.root.rglob("*")} == before


@pytest.mark.parametrize(("kind", "name"), [(EvaluationFolder, RECORD), (Comparison, "compare.json")])
def test_other_folders_of_another_format_are_refused(kind: Any, name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(json.dumps({"config": {}, "run": "r"}))
    with pytest.raises(DataError, match=OLDER):
        kind.open(tmp_path)


def test_a_table_of_release_0_1_0_is_told_from_a_broken_one(tmp_path: Path) -> None:
    older = [one for one in tables.VERDICTS if one[0] != "correct"]
    for fields, said in ((older, "oapl 0.1.0 wrote it, and opens it"), (older[1:], "see data/README.md")):
        tables.write_table(tmp_path / "t.parquet", fields, [])
        with pytest.raises(DataError, match=rf"does not have the documented columns .*; {said}$"):
            tables.read_table(tmp_path / "t.parquet", tables.VERDICTS)
