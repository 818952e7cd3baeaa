"""Tables: the documented schema, or an error that names the file."""

from pathlib import Path

import pytest

from oapl_core.errors import DataError
from oapl_core.tables import GROUPS, PROMPTS, read_table, write_table


def rows(count: int) -> list[dict[str, object]]:
    return [{"problem_id": f"p{i}", "split": "train", "prompt": "x\n", "prompt_ids": [1, i]} for i in range(count)]


def test_rows_come_back_as_written(tmp_path: Path) -> None:
    path = tmp_path / "prompts.parquet"
    assert write_table(path, PROMPTS, rows(2500), rows_per_group=1000) == 2500
    assert read_table(path, PROMPTS).to_pylist() == rows(2500)
    assert read_table(path, PROMPTS, ["problem_id"]).column_names == ["problem_id"]


def test_an_undocumented_column_is_our_own_bug(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="row has columns"):
        write_table(tmp_path / "x.parquet", PROMPTS, [{**rows(1)[0], "extra": 1}])


def test_a_missing_torn_or_foreign_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "prompts.parquet"
    with pytest.raises(DataError, match="is missing"):
        read_table(path, PROMPTS)
    write_table(path, PROMPTS, rows(100))
    with pytest.raises(DataError, match="does not have the documented columns"):
        read_table(path, GROUPS)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match=r"prompts\.parquet: cannot be read as Parquet"):
        read_table(path, PROMPTS)
