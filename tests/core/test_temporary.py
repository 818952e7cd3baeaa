"""Temporary folders: what a killed process leaves goes with the next start; what a living one uses stays."""

import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from oapl_core.temporary import locked_folder, temporary_folder

_ROOT = Path(__file__).resolve().parents[2]
_HOLDER = """
import time
from oapl_core.temporary import temporary_folder
with temporary_folder() as folder:
    (folder / "file").touch()
    print(folder, flush=True)
    time.sleep(600)
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def test_a_killed_process_leaves_its_folder_to_the_next(place: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", _HOLDER], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        held = Path(holder.stdout.readline().strip())
        os.utime(held, (0, 0))
        with temporary_folder():
            assert (held / "file").exists(), "a living process's stays"
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    os.utime(held, (0, 0))
    with temporary_folder() as own:
        assert list(place.iterdir()) == [own]
    assert not list(place.iterdir())


def test_what_another_machine_keeps_in_a_shared_place_stays(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = list[Path]()
    for machine in ("one", "two"):
        monkeypatch.setattr(os, "uname", lambda machine=machine: SimpleNamespace(nodename=machine))
        name, lock = locked_folder()
        os.close(lock)  # as if it were a lock that only its machine sees
        os.utime(name, (0, 0))
        folders.append(Path(name))
    with temporary_folder() as own:
        assert set(place.iterdir()) == {folders[0], own}, "on machine two, whose old folder is gone"
    assert len(own.name) <= 24, "sockets lie below"


def test_no_other_temporary_folder_is_made() -> None:
    made = re.compile(r"TemporaryDirectory|mkdtemp")
    files = [
        file for package in ("oapl_core", "tasks", "flows", "deployments") for file in (_ROOT / package).rglob("*.py")
    ]
    found = {str(file.relative_to(_ROOT)) for file in files if made.search(file.read_text())}
    assert found == {"oapl_core/temporary.py"}, "a killed process would leave it for ever"
