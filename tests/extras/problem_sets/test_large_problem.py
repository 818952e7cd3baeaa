"""A problem with 189 MB of tests, as LiveCodeBench's largest, is imported in bounded memory (slow: a minute)."""

from collections.abc import Callable
from pathlib import Path

import pytest

from bench.problem_import import measure, write_deepcoder, write_livecodebench


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "write", "limit_mib"),
    [("livecodebench", write_livecodebench, 1024), ("deepcoder-lcbv5", write_deepcoder, 1536)],
)
def test_problems_of_189_mb_are_imported_in_bounded_memory(
    name: str, write: Callable[[Path], Path], limit_mib: int, tmp_path: Path
) -> None:
    path = write(tmp_path)
    for target in ("out.jsonl", "out.parquet"):
        found = measure(name, path, tmp_path / target)
        assert found.read == found.kept == 200
        assert found.peak_mib < limit_mib
