"""`python -m bench.problem_import`: peak memory and speed of an import: writes docs/benchmarks/problems.md.

Synthetic sets in the true shapes: LiveCodeBench with two problems of 189 MB in a row, DeepCoder's lcbv5 with the same,
and rows of ordinary size, with and without the search for duplicates.
"""

import base64
import json
import pickle
import random
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tests.extras.problem_sets import foreign_rows as rows
from tests.reference_sets import ROOT

PAGE = Path("docs/benchmarks/problems.md")
LARGE_BYTES = 189_000_000
TESTS = 42
SMALL_ROWS, ORDINARY_ROWS = 200, 4000
ORDINARY_BYTES = 100_000
PROGRAM = r"""
import json, re, sys, time
from pathlib import Path
from oapl_extras.problem_sets.import_set import Choice, import_set
from oapl_extras.problem_sets.sources import source
name, path, target, distinct = sys.argv[1:]
choice = Choice(source(name).split, distinct=distinct == "True")
start = time.monotonic()
tally = import_set(source(name), [Path(path)], Path(target), choice)
seconds = time.monotonic() - start
peak = re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1]  # ru_maxrss would count the parent's
print(json.dumps([tally.read, tally.kept, seconds, int(peak) / 1024]))
"""


@dataclass(frozen=True)
class Measured:
    """One import."""

    read: int
    kept: int
    seconds: float
    peak_mib: float


def measure(name: str, path: Path, target: Path, distinct: bool = False) -> Measured:
    """Import ``path`` in a process of its own."""
    command = [sys.executable, "-c", PROGRAM, name, str(path), str(target), str(distinct)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
    return Measured(*json.loads(done.stdout))


def large_tests() -> list[dict[str, str]]:
    """42 tests with 189 MB of digits."""
    numbers = " ".join(str(number) for number in range(10**6, 10**6 + LARGE_BYTES // TESTS // 8))
    return [{"input": f"{i} {numbers}\n", "output": f"{i}\n", "testtype": "stdin"} for i in range(TESTS)]


def write_livecodebench(folder: Path) -> Path:
    """Small rows around two large ones, one after the other."""
    packed = base64.b64encode(zlib.compress(pickle.dumps(json.dumps(large_tests())), 1)).decode()
    path = folder / "test.jsonl"
    with path.open("w") as file:
        for i in range(SMALL_ROWS):
            row = rows.livecodebench(f"p{i}", "2024-09-01")
            if i in (99, 100):
                row["private_test_cases"] = packed
            file.write(json.dumps(row) + "\n")
    return path


def write_deepcoder(folder: Path) -> Path:
    """The same in DeepCoder's Parquet form."""
    given = [rows.lcbv5(False, None, problem=f"Problem number {i}, add {i} to it.") for i in range(SMALL_ROWS)]
    for i in (99, 100):
        given[i]["tests"] = json.dumps(large_tests())
    path = folder / "large.parquet"
    pq.write_table(pa.Table.from_pylist(given), path, row_group_size=100)
    return path


def write_ordinary(folder: Path) -> Path:
    """4,000 problems with 42 tests of 100 kB together and statements of 200 words."""
    generator = random.Random(0)
    words = [f"word{i}" for i in range(5000)]
    numbers = " ".join(str(number) for number in range(10**6, 10**6 + ORDINARY_BYTES // TESTS // 8))
    path = folder / "ordinary.parquet"
    schema = pa.schema([("problem", pa.string()), ("tests", pa.string())])
    with pq.ParquetWriter(path, schema) as writer:
        for start in range(0, ORDINARY_ROWS, 100):
            given = [
                {
                    "problem": " ".join(generator.choices(words, k=200)),
                    "tests": json.dumps([{"input": f"{i + j} {numbers}\n", "output": f"{j}\n"} for j in range(TESTS)]),
                }
                for i in range(start, start + 100)
            ]
            writer.write_table(pa.Table.from_pylist(given, schema))
    return path


Case = tuple[str, str, Callable[[Path], Path], str, bool]
CASES: tuple[Case, ...] = (
    ("LiveCodeBench, two problems of 189 MB", "livecodebench", write_livecodebench, "out.jsonl", False),
    ("LiveCodeBench, two problems of 189 MB", "livecodebench", write_livecodebench, "out.parquet", False),
    ("DeepCoder lcbv5, two problems of 189 MB", "deepcoder-lcbv5", write_deepcoder, "out.jsonl", False),
    ("DeepCoder lcbv5, two problems of 189 MB", "deepcoder-lcbv5", write_deepcoder, "out.parquet", False),
    ("DeepCoder, 4,000 ordinary problems", "deepcoder-codeforces", write_ordinary, "out.parquet", False),
    ("the same, duplicates searched", "deepcoder-codeforces", write_ordinary, "out.parquet", True),
)


def page() -> str:
    """The page in Markdown."""
    lines = [
        "# Importing problem sets: memory and speed",
        "",
        "Made by `python -m bench.problem_import` from synthetic sets in the true shapes, one process for each",
        "row; memory is the peak of the whole process (VmHWM). The two large problems follow one another. Read from",
        "Parquet they need more than from JSON lines, as Arrow decodes a page and builds a column of it side by side.",
        "`pytest -m slow tests/extras/problem_sets` holds LiveCodeBench's below 1 GiB and DeepCoder's below 1.5 GiB.",
        "",
        "| set | written as | rows | seconds | rows/s | MB/s of source | peak MiB |",
        "|---|---|---|---|---|---|---|",
    ]
    with tempfile.TemporaryDirectory() as folder:
        made: dict[Callable[[Path], Path], Path] = {}
        for title, name, write, target, distinct in CASES:
            path = made.setdefault(write, made.get(write) or write(Path(folder)))
            found = measure(name, path, Path(folder) / target, distinct)
            lines.append(
                f"| {title} | {Path(target).suffix} | {found.read:,} | {found.seconds:.1f} "
                f"| {found.read / found.seconds:,.0f} | {path.stat().st_size / 1e6 / found.seconds:.0f} "
                f"| {found.peak_mib:.0f} |"
            )
    lines += [
        "",
        "Times: two cores, another test run beside it; memory does not depend on that. Duplicates: 5-word pieces of",
        "statements of 200 words, against all statements before.",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    started = time.monotonic()
    text = page()
    (ROOT / PAGE).write_text(text)
    print(text, f"in {time.monotonic() - started:.0f} s")
