"""A rank's engine alone: what it listens on, and that reading a state runs nothing which the state names."""

import os
import pickle
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
SESSION = "tests.core.training.engine_session"


def session(folder: Path, *arguments: str, ranks: int = 1) -> list[str]:
    """Lines that the ranks print."""
    launcher = ["oapl_core.training.one_machine", f"--nproc-per-node={ranks}", "-m"] if ranks > 1 else []
    command = [sys.executable, "-m", *launcher, SESSION, str(folder), *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A state of one rank, and what its session printed."""
    folder = tmp_path_factory.mktemp("state")
    return folder, session(folder, "1", "float32")


def listened(lines: list[str]) -> set[str]:
    return {line.removeprefix("LISTENS ") for line in lines if line.startswith("LISTENS")}


def test_one_rank_listens_to_this_machine_alone(saved: tuple[Path, list[str]]) -> None:
    assert listened(saved[1]) <= {"127.0.0.1", "::1"}
    assert saved[1][-1] == "LOADED 1"


def test_two_ranks_and_their_launcher_listen_to_this_machine_alone(tmp_path: Path) -> None:
    lines = session(tmp_path, "2", "bfloat16", ranks=2)
    assert listened(lines) == {"127.0.0.1"}, "the launcher's two stores among them"
    assert "".join(lines).count("LOADED 1") == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("zero_stage", "dtype"),
    [("0", "float32"), ("1", "bfloat16"), ("2", "float32"), ("3", "float32"), ("3", "bfloat16")],
)
def test_every_kind_of_state_is_read(tmp_path: Path, zero_stage: str, dtype: str) -> None:
    for ranks in (1, 2):
        (tmp_path / str(ranks)).mkdir()
        assert "".join(session(tmp_path / str(ranks), zero_stage, dtype, ranks=ranks)).count("LOADED 1") == ranks


class Touching:
    """Makes a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def as_plain_pickle(path: Path, program: bytes) -> None:
    """Replaces the whole file."""
    path.write_bytes(program)


def as_torch_archive(path: Path, program: bytes) -> None:
    """Replaces the pickle in it, and leaves the tensors."""
    with zipfile.ZipFile(path) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, value in content.items():
            archive.writestr(name, program if name.endswith("data.pkl") else value)


@pytest.mark.parametrize(
    ("hurt", "pattern"),
    [
        (as_plain_pickle, "*optim_states.pt"),
        (as_torch_archive, "*model_states.pt"),
        pytest.param(as_plain_pickle, "*model_states.pt", marks=pytest.mark.slow),
        pytest.param(as_torch_archive, "*optim_states.pt", marks=pytest.mark.slow),
    ],
)
def test_a_program_in_a_state_is_not_run(
    tmp_path: Path, saved: tuple[Path, list[str]], pattern: str, hurt: Callable[[Path, bytes], None]
) -> None:
    state, mark = tmp_path / "state", tmp_path / "executed"
    shutil.copytree(saved[0], state)
    hurt(next(state.rglob(pattern)), pickle.dumps({"module": Touching(mark)}, protocol=2))
    (tmp_path / "own").mkdir()
    lines = session(tmp_path / "own", "1", "float32", str(state))
    assert not mark.exists()
    assert f"error: {state}: a file of this saved state" in lines[-1]
    assert "nothing of it was run: delete the folder" in lines[-1]
