"""A folder is hashed again where anything in it changed, and else not read twice."""

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from oapl_core import files
from oapl_core.run_folder.recorded import Recorded


def test_what_has_not_changed_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model").mkdir()
    weights = tmp_path / "model" / "weights"
    weights.write_text("1")
    first, read = files.sha256_once(tmp_path / "model"), list[Path]()
    whole = files.sha256_of

    def counted(path: Path) -> str:
        read.append(path)
        return whole(path)

    monkeypatch.setattr(files, "sha256_of", counted)
    assert files.sha256_once(tmp_path / "model") == first
    assert read == []
    weights.write_text("2")
    assert files.sha256_once(tmp_path / "model") == files.sha256_of(tmp_path / "model") != first
    assert read


@pytest.mark.parametrize(
    ("umask", "file", "folder"), [(0o022, 0o644, 0o755), (0o002, 0o664, 0o775), (0o077, 0o600, 0o700)]
)
def test_an_artifact_is_for_whom_the_umask_says(tmp_path: Path, umask: int, file: int, folder: int) -> None:
    """Weights came out for one user alone, whatever it was."""
    before = os.umask(umask)
    try:
        with Recorded(tmp_path).writing(tmp_path / "checkpoint", {}, {}) as draft:
            draft.path.mkdir(mode=0o700)
            save_file({"w": torch.zeros(1)}, draft.path / "model.safetensors")
            (draft.path / "model.safetensors").chmod(0o600)
    finally:
        os.umask(before)
    made = tmp_path / "checkpoint"
    assert (made.stat().st_mode & 0o777, (made / "model.safetensors").stat().st_mode & 0o777) == (folder, file)
