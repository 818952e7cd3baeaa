"""Rows in any order: each is the one asked for, however little is kept."""

import os
import random
from pathlib import Path
from typing import Any

import pytest

from oapl_core.errors import DataError
from oapl_core.rows import Rows
from oapl_core.tables import PROMPTS, count_rows, open_table, read_table, write_table


def write(path: Path, count: int, per_group: int) -> list[dict[str, Any]]:
    made = [
        {"problem_id": f"p{i}", "split": "train", "prompt": "x", "prompt_ids": list(range(i, i + i % 7))}
        for i in range(count)
    ]
    write_table(path, PROMPTS, made, rows_per_group=per_group)
    return made


@pytest.mark.parametrize("kept_bytes", [0, 500, 2**20])
def test_every_row_is_the_one_asked_for(tmp_path: Path, kept_bytes: int) -> None:
    made = write(tmp_path / "x.parquet", 100, 7)
    rows = Rows(tmp_path / "x.parquet", PROMPTS, ["problem_id", "prompt_ids"], kept_bytes)
    assert len(rows) == 100
    for i in random.Random(0).sample(range(100), 100):
        assert rows[i].to_pylist() == [{name: made[i][name] for name in ("problem_id", "prompt_ids")}]


def test_a_small_table_is_decoded_once_and_in_order_so_is_a_large_one(tmp_path: Path) -> None:
    write(tmp_path / "x.parquet", 100, 10)
    for kept_bytes, order in ((2**20, random.Random(0).sample(range(100), 100)), (0, list(range(100)))):
        rows = Rows(tmp_path / "x.parquet", PROMPTS, ["prompt_ids"], kept_bytes)
        for i in order:
            rows[i]
        assert rows.reads == 10


def test_a_row_group_ends_where_its_tokens_reach_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    long = {"problem_id": "p", "split": "train", "prompt": "", "prompt_ids": [1] * 400_000}
    assert write_table(path, PROMPTS, [long] * 5) == count_rows(path) == 5
    with open_table(path, PROMPTS) as file:
        assert [file.metadata.row_group(g).num_rows for g in range(file.num_row_groups)] == [2, 2, 1]
    assert read_table(path, PROMPTS, ["prompt_ids"])["prompt_ids"][4].as_py() == long["prompt_ids"]


def test_damage_is_named_when_it_is_reached(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    write(path, 100, 10)
    rows = Rows(path, PROMPTS, ["prompt_ids"], 0)
    os.truncate(path, 300)
    with pytest.raises(DataError, match=r"x\.parquet: cannot be read"):
        rows[99]


def test_a_full_disk_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    path.symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left on device") as caught:
        write(path, 100_000, 1000)
    assert caught.value.filename == str(path)
