"""The store's floors; docs/benchmarks/store.md has the figures and their commands."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from bench import store

pytestmark = pytest.mark.bench


def test_ours_is_two_and_a_half_times_smaller_than_jsonl(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store.formats(tmp_path, mean_tokens=500, rows=512, repeats=1)
    sizes = {line[:30].strip(): float(line[30:].split()[0]) for line in capsys.readouterr().out.splitlines()[1:]}
    assert sizes["plain JSONL"] / sizes["ours"] > 2.5
    assert sizes["ours"] < sizes["Parquet, pyarrow's defaults"]


def test_twice_the_rollouts_cost_twice_the_time_and_stay_below_2_gib(tmp_path: Path) -> None:
    seconds: dict[str, list[float]] = {"group": [], "read": []}
    for rows in (20_000, 40_000):
        for step in ("write", "group", "read"):
            sizes = [str(rows), "200"] if step == "write" else []
            command = [sys.executable, "-m", "bench.store", "step", step, str(tmp_path / str(rows)), *sizes]
            said = subprocess.check_output(command, text=True)
            found = re.search(r"([\d.]+) s  peak +(\d+) MiB", said)
            assert found
            assert int(found[2]) < 2048
            if step in seconds:
                seconds[step].append(float(found[1]))
    for step, (small, large) in seconds.items():
        assert large < 3 * small, f"{step} took {small} s, then {large} s"
