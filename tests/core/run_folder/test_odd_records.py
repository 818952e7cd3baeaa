"""Records of a run folder that are no files, and ledger lines that no stage writes: one line, and no command waits."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from oapl_core.errors import LedgerError, OaplError
from oapl_core.run_folder.ledger import Ledger
from oapl_core.run_folder.run import Run
from tests.synthetic_run import Sizes, write_synthetic_run


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return write_synthetic_run(tmp_path, Sizes(train=4, validation=2, heldout=2, group=2, samples=2, epochs=(1, 1)))


def make_pipe(path: Path) -> None:
    os.mkfifo(path)


def make_link_to_a_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("name", ["run.json", "ledger.jsonl"])
@pytest.mark.parametrize("make", [make_pipe, Path.mkdir, make_link_to_a_device])
def test_a_record_that_is_no_file_is_one_line(run: Run, name: str, make: Any) -> None:
    (run.root / name).unlink()
    make(run.root / name)
    done = subprocess.run(
        [sys.executable, "-m", "deployments.cli", "status", str(run.root)],
        capture_output=True,
        text=True,
        timeout=60,  # it would wait for ever
    )
    assert done.returncode in (2, 4), done.stderr
    assert done.stderr == f"error: {run.root / name}: is no regular file; put the file back that was there\n"


def line(**changes: Any) -> str:
    entry: dict[str, Any] = {"kind": "artifact", "at": "now", "artifact": "a", "sha256": "0", "bytes": 1, "rows": 0}
    return json.dumps({**entry, **changes}) + "\n"


LINES = {
    "a name of 5,000 characters": line(artifact="a" * 5000),
    "a part of 300": line(artifact=f"round_00/{'a' * 300}/b"),
    "300 bytes of 100 characters": line(artifact="€" * 100),
    "a zero byte": line(artifact="a\0b"),
    "seconds that are no number": line(seconds=float("nan")),
    "endless seconds": line(seconds=float("inf")),
    "more than Python holds": line(seconds=1).replace('"seconds": 1', '"seconds": 1e999'),
    "less than none": line(seconds=-1.0),
    "a stage's": '{"kind": "stage", "at": "now", "stage": "a", "seconds": NaN, "exit_code": 0}\n',
}


@pytest.mark.parametrize("text", LINES.values(), ids=LINES)
def test_a_line_that_no_stage_writes_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "ledger.jsonl").write_text(line() + text)
    with pytest.raises(LedgerError, match=r"ledger.jsonl: line 2 is not a ledger entry") as raised:
        Ledger(tmp_path / "ledger.jsonl").artifacts()
    assert len(str(raised.value)) < len(str(tmp_path)) + 250


def test_a_record_in_another_encoding_is_one_line(run: Run) -> None:
    (run.root / "run.json").write_bytes(b"\xff\xfe{\0}\0")
    with pytest.raises(OaplError, match=r"run.json: is not readable"):
        Run.open(run.root)
