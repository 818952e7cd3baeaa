"""A folder is hashed again where anything in it changed, and else not read twice."""

from pathlib import Path

import pytest

from oapl_core import files


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
