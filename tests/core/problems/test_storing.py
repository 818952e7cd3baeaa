"""Problem sets on the disk: whole or not at all, in pieces that memory can hold; and what is read from any form."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from oapl_core.errors import ConfigError, DataError
from oapl_core.problems.problem_set import checked, read_problem_set
from oapl_core.problems.raw_rows import raw_rows
from oapl_core.problems.set_files import write_problem_set

MIB = 2**20


def problem(name: str, size: int = 10) -> dict[str, Any]:
    tests = [{"input": "9" * size, "output": "ü\n"}]
    raw = {"problem_id": name, "kind": "stdin", "statement": "Echo “it”.", "tests": tests, "source": "own"}
    return checked(raw, "train", "here")


def test_a_large_problem_ends_its_row_group_and_small_ones_share_theirs(tmp_path: Path) -> None:
    sizes = [10, 33 * MIB, 33 * MIB, *[10] * 70]
    path = tmp_path / "a.parquet"
    written = write_problem_set(path, (problem(f"p{i}", size) for i, size in enumerate(sizes)))
    metadata = pq.read_metadata(path)
    groups = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
    assert (written, groups) == (73, [2, 1, 64, 6])
    assert [row["problem_id"] for row in read_problem_set(path, "train")] == [f"p{i}" for i in range(73)]


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.parquet"])
def test_what_is_written_is_what_is_read(name: str, tmp_path: Path) -> None:
    maths = {"problem_id": "m", "kind": "math", "statement": "?", "answer": "1", "source": "own"}
    given = [problem("a"), checked(maths, "train", "")]
    write_problem_set(tmp_path / name, given)
    assert list(read_problem_set(tmp_path / name, "train")) == given


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_columns_that_few_problems_have_are_kept_wherever_they_begin(name: str, tmp_path: Path) -> None:
    raw = {"problem_id": "i", "kind": "math", "statement": "?", "answer": "1", "source": "own", "info": {"ä": [1]}}
    informed = checked(raw, "train", "")
    assert informed["info"] == '{"ä": [1]}'
    given = [problem("a"), informed, problem("b"), {**problem("c"), "language": "cpp"}, {**informed, "problem_id": "j"}]
    write_problem_set(tmp_path / name, given)
    read = [{k: v for k, v in row.items() if v is not None} for row in read_problem_set(tmp_path / name, "train")]
    assert read == [{k: v for k, v in row.items() if v is not None} for row in given]
    assert [file.name for file in tmp_path.iterdir()] == [name]


def test_a_set_that_breaks_off_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    write_problem_set(path, [problem("old")])

    def broken() -> Iterator[dict[str, Any]]:
        yield problem("new")
        raise DataError("torn")

    with pytest.raises(DataError, match="torn"):
        write_problem_set(path, broken())
    assert [file.name for file in tmp_path.iterdir()] == ["a.jsonl"]
    assert json.loads(path.read_text())["problem_id"] == "old"


def test_other_names_are_refused_before_anything_is_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="name the file .jsonl"):
        write_problem_set(tmp_path / "a.csv", [])


def test_arrow_streams_and_json_lines_under_another_name_are_read_like_the_rest(tmp_path: Path) -> None:
    rows = [{"a": i, "b": ["x", str(i)]} for i in range(5)]
    table = pa.Table.from_pylist(rows)
    with pa.OSFile(str(tmp_path / "a.arrow"), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)
    (tmp_path / "a.json").write_text("".join(json.dumps(row) + "\n\n" for row in rows))
    assert list(raw_rows(tmp_path / "a.arrow")) == list(enumerate(rows, start=1))
    assert [row for _, row in raw_rows(tmp_path / "a.json")] == rows
    (tmp_path / "torn.arrow").write_bytes(b"no arrow")
    (tmp_path / "torn.json").write_text("[1, ")
    for name in ("torn.arrow", "torn.json"):
        with pytest.raises(DataError, match="fetch it again") as caught:
            list(raw_rows(tmp_path / name))
        assert "\n" not in str(caught.value)
