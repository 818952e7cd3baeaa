"""Other people's readers open a rollout part unaided and see what was written."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from oapl_core.tables import ROLLOUTS, read_table, write_table


def rollout(number: int) -> dict[str, Any]:
    size = 3 * number
    return {
        "run": "r",
        "round": 0,
        "problem_id": f"p{number // 4}",
        "rollout_id": f"p{number // 4}/r00/s{number % 4}",
        "sample": number % 4,
        "policy_hash": "0" * 16,
        "response_ids": [number, *range(151_000, 151_000 + size)],
        "logprobs": [-0.25] * size + [-1e-7],
        "logprobs_mode": "raw_logprobs",
        "finish_reason": "stop",
        "text": f"äöü \n{number}",
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "max_tokens": 32_000,
        "seed": 2**62 + number,
        "engine": "vllm 0.32.0",
        "sampled_at": datetime(2026, 1, 1, 12, 30, tzinfo=UTC),
    }


def polars(path: Path) -> list[dict[str, Any]]:
    import polars as pl

    frame = pl.read_parquet(path)
    assert frame.schema["response_ids"] == pl.List(pl.Int32)
    assert frame.schema["logprobs"] == pl.List(pl.Float32)
    assert frame.schema["sampled_at"] == pl.Datetime("us", "UTC")
    return frame.to_dicts()


def duckdb(path: Path) -> list[dict[str, Any]]:
    import duckdb

    with duckdb.connect() as connection:
        query = "select * exclude sampled_at, epoch_us(sampled_at) as us from read_parquet(?)"
        found = connection.execute(query, [str(path)])
        types = {column[0]: str(column[1]) for column in found.description or ()}
        assert (types["response_ids"], types["logprobs"], types["seed"]) == ("INTEGER[]", "FLOAT[]", "BIGINT")
        rows = [dict(zip(types, row, strict=True)) for row in found.fetchall()]
    return [row | {"sampled_at": datetime.fromtimestamp(row.pop("us") / 1e6, UTC)} for row in rows]


def pandas(path: Path) -> list[dict[str, Any]]:
    import pandas as pd

    frame = pd.read_parquet(path)
    assert frame["response_ids"][0].dtype == "int32"
    assert frame["logprobs"][0].dtype == "float32"
    assert str(frame["seed"].dtype) == "int64"
    lists = {name: frame[name].map(list) for name in ("response_ids", "logprobs")}
    frame = frame.assign(**lists)
    frame = frame.astype(object).where(frame.notna(), None)  # pandas has NaN and NaT for nulls
    return [{str(k): v for k, v in row.items()} for row in frame.to_dict("records")]


def hugging_face(path: Path) -> list[dict[str, Any]]:
    from datasets import load_dataset

    data = load_dataset("parquet", data_files=str(path), split="train", cache_dir=str(path.parent / "cache"))
    assert data.features["response_ids"].feature.dtype == "int32"
    assert data.features["logprobs"].feature.dtype == "float32"
    return list(data)


@pytest.mark.parametrize("read", [polars, duckdb, pandas, hugging_face])
def test_a_rollout_part_is_read_unaided(tmp_path: Path, read: Callable[[Path], list[dict[str, Any]]]) -> None:
    path = tmp_path / "part-00000.parquet"
    write_table(path, ROLLOUTS, map(rollout, range(20)), rows_per_group=8)
    expected = read_table(path, ROLLOUTS).to_pylist()
    assert [row["response_ids"] for row in expected] == [rollout(i)["response_ids"] for i in range(20)]
    assert read(path) == expected
