"""The ledger survives torn writes and concurrent writers."""

import multiprocessing
from pathlib import Path

import pytest

from oapl_core.errors import LedgerError
from oapl_core.run_folder.ledger import ArtifactEntry, Ledger, StageEntry


def entry(name: str, sha: str = "0" * 64) -> ArtifactEntry:
    return ArtifactEntry(name, sha, 1, 2, {"in": "x"}, {"seed": 1}, {"kept": 3}, 0.5, 7)


def test_what_is_appended_is_read_back(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    assert ledger.artifacts() == {}
    ledger.append(entry("a"))
    ledger.append(StageEntry("rollouts.generate round 0", 3.5, 0))
    assert ledger.artifacts() == {"a": entry("a")}
    assert ledger.stages() == [StageEntry("rollouts.generate round 0", 3.5, 0)]


def test_the_newest_entry_of_an_artifact_counts(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    for sha in ("1", "2"):
        ledger.append(entry("a", sha))
    assert ledger.artifacts()["a"].sha256 == "2"


@pytest.mark.parametrize("keep", [1, 20, -1])
def test_a_torn_last_line_is_ignored_and_then_cut_off(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path)
    ledger.append(entry("a"))
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:keep])
    assert list(ledger.artifacts()) == ["a"]
    ledger.append(entry("b"))
    assert list(ledger.artifacts()) == ["a", "b"]


def test_a_broken_line_inside_is_an_error_with_its_number(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path)
    ledger.append(entry("a"))
    path.write_bytes(b"rubbish\n" + path.read_bytes())
    with pytest.raises(LedgerError, match="line 1 is not a ledger entry"):
        ledger.artifacts()


def _append_many(path: Path, name: str) -> None:
    for number in range(20):
        Ledger(path).append(entry(f"{name}{number}"))


def test_concurrent_writers_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_append_many, args=(path, name)) for name in "ab"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert len(Ledger(path).artifacts()) == 40


def test_a_reader_follows_what_other_writers_add_and_notices_a_replaced_file(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    reader, writer = Ledger(path), Ledger(path)
    assert reader.stages() == []
    writer.append(StageEntry("a", 1.0, 0))
    assert [entry.stage for entry in reader.stages()] == ["a"]
    with path.open("ab") as file:
        file.write(b'{"kind": "stage", "at"')
    assert [entry.stage for entry in reader.stages()] == ["a"], "a torn line counts for nothing"
    writer.append(StageEntry("b", 1.0, 0))
    assert [entry.stage for entry in reader.stages()] == ["a", "b"]
    path.unlink()
    assert reader.stages() == []
    writer.append(StageEntry("c", 1.0, 0))
    assert [entry.stage for entry in reader.stages()] == ["c"]
