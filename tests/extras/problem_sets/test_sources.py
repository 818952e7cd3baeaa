"""Where sets are found: files, folders, releases, and a repository at one commit, without any network."""

from pathlib import Path

import pytest

from oapl_core.errors import ConfigError, DataError
from oapl_core.files import sha256_of
from oapl_extras.problem_sets.sources import Source, fetch, local_files, released_files, source, sources
from tests.reference_sets import shared_file

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def files(folder: Path, *names: str) -> Path:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}\n")
    return folder


def names(found: list[Path]) -> list[str]:
    return [path.name for path in found]


def test_a_release_is_the_first_files_and_its_size_is_known() -> None:
    assert released_files(source("livecodebench"), "v2") == (("test.jsonl", "test2.jsonl"), 511)
    assert released_files(source("livecodebench"), "v5")[1] == 880
    patterns, rows = released_files(source("livecodebench"), None)
    assert (len(patterns), rows) == (6, 1055)
    for name, release in [("livecodebench", "v7"), ("livecodebench", "5"), ("livecodebench", "v0"), ("gsm8k", "v1")]:
        with pytest.raises(ConfigError, match="has no release"):
            released_files(source(name), release)


def test_the_files_at_hand_are_those_that_were_checked() -> None:
    checked = [(name, sha256) for found in sources().values() for name, sha256 in found.sha256.items()]
    assert len(checked) == 2
    for name, sha256 in checked:
        assert sha256_of(shared_file(name)) == sha256


def test_an_unknown_set_is_named_with_those_that_are_known() -> None:
    with pytest.raises(ConfigError, match=r"no problem set 'lcb'; known are .*livecodebench"):
        source("lcb")


def test_a_folder_gives_the_files_of_the_set_in_their_order(tmp_path: Path) -> None:
    folder = files(tmp_path, "test2.jsonl", "test.jsonl", "test10.jsonl", "README.md")
    assert names(local_files(folder, ["test.jsonl", "test2.jsonl"])) == ["test.jsonl", "test2.jsonl"]
    assert local_files(folder / "test10.jsonl", ["test.jsonl"]) == [folder / "test10.jsonl"]


def test_a_copy_of_the_repository_and_one_without_its_folders_are_both_found(tmp_path: Path) -> None:
    deep = files(tmp_path / "deep", "taco/train-00001-of-00002.parquet", "taco/train-00000-of-00002.parquet")
    flat = files(tmp_path / "flat", "train-00000-of-00001.parquet")
    for folder, count in ((deep, 2), (flat, 1)):
        found = names(local_files(folder, ["taco/train-*.parquet"]))
        assert found == sorted(found)
        assert len(found) == count


def test_a_release_with_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"test2\.jsonl is missing"):
        local_files(files(tmp_path, "test.jsonl"), ["test.jsonl", "test2.jsonl"])


def test_a_folder_of_other_names_gives_all_that_can_be_read(tmp_path: Path) -> None:
    folder = files(tmp_path, "b.parquet", "a.jsonl", "notes.txt")
    assert names(local_files(folder, ["x-*.parquet"])) == ["a.jsonl", "b.parquet"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="has no file to read"):
        local_files(tmp_path / "empty", ["x.jsonl"])
    with pytest.raises(DataError, match="no such file or folder"):
        local_files(tmp_path / "missing", ["x.jsonl"])


def test_a_folder_of_several_splits_is_not_read_as_one(tmp_path: Path) -> None:
    folder = files(tmp_path, "test.jsonl.gz", "train.jsonl.gz")
    with pytest.raises(DataError, match=r"several splits \(test\.jsonl\.gz, train\.jsonl\.gz\); give the one you want"):
        local_files(folder, ["main/train-*.parquet"])
    (folder / "test.jsonl.gz").rename(folder / "train2-00001.jsonl.gz")
    assert len(local_files(folder, ["main/train-*.parquet"])) == 2


@pytest.mark.parametrize("revision", [None, "main", "v1.0", COMMIT[:12]])
def test_a_repository_is_read_at_a_whole_commit_only(revision: str | None) -> None:
    with pytest.raises(ConfigError, match="40 hex digits"):
        fetch(source("gsm8k"), ["main/test-*.parquet"], revision)


def test_a_set_without_repository_asks_for_a_file() -> None:
    with pytest.raises(ConfigError, match="give a file with path="):
        fetch(source("plain"), [], COMMIT)


def test_a_commit_in_the_cache_is_read_without_the_hub_and_another_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    found = Source(name="own", format="maths", files=("data/*.jsonl",), licence="none", hub="someone/own")
    folder = files(tmp_path / "datasets--someone--own" / "snapshots" / COMMIT, "data/a.jsonl")
    assert fetch(found, found.files, COMMIT) == folder
    with pytest.raises(DataError, match="give path=PATH") as caught:
        fetch(found, found.files, COMMIT[::-1])
    assert "\n" not in str(caught.value)
