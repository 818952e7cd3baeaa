"""The store against JSONL and other Parquet, and large rounds in little memory: ``python -m bench.store``.

    formats               bytes, write and read speed of the same rollouts in each format, best of three
    scale [--rows N ...]  rounds of N rollouts: written, grouped, filtered, read in shuffled order; each in a process of
                          its own, whose peak memory is printed
    --tokens N            mean length of the answers (formats 2,000; scale 500); --folder DIR for the files

Made-up rollouts: token ids are Zipf-like over 152,000, with repeats; log-probs are mostly near 0 with an exponential
tail; lengths are log-normal, at most 32,000.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from oapl_core import tables
from oapl_core.groups.build import build
from oapl_core.model_files.model_folder import policy_hash
from oapl_core.run_folder.run import Run
from oapl_core.training.examples import read_examples
from oapl_core.training.layouts.batching import epoch_order
from tests.sampling_run import made_up_model, make_run

VOCABULARY, LONGEST, GROUP, PROBLEMS_PER_PART = 152_000, 32_000, 8, 128
WORDS = np.array(["the", " answer", " is", " x", "=", " 2", " return", "\n    ", "(", ")", " we", " have", " so", ","])


class Answers:
    """Draws rollouts; ``mean_tokens`` is the mean length before the cut at LONGEST."""

    def __init__(self, mean_tokens: int, seed: int = 0) -> None:
        self._draw = np.random.default_rng(seed)
        self._mu = float(np.log(mean_tokens) - 0.5)  # of a log-normal with sigma 1
        weights = 1 / (np.arange(VOCABULARY) + 2.7) ** 1.1
        self._cumulative = np.cumsum(weights / weights.sum())
        self._ids = self._draw.permutation(VOCABULARY).astype(np.int32)

    def length(self) -> int:
        return int(np.clip(self._draw.lognormal(self._mu, 1.0), 2, LONGEST))

    def ids(self, size: int) -> Any:
        """A quarter of the tokens repeats what was said 20 tokens before."""
        ids = self._ids[np.searchsorted(self._cumulative, self._draw.random(size)).clip(0, VOCABULARY - 1)]
        again = np.flatnonzero(self._draw.random(size) < 0.25)
        again = again[again >= 20]
        ids[again] = ids[again - 20]
        return ids

    def logprobs(self, size: int) -> Any:
        sure = self._draw.random(size) < 0.6
        near, far = -np.exp(self._draw.normal(-8, 2.5, size)), -self._draw.exponential(0.8, size)
        return np.where(sure, near, far).astype(np.float32)

    def row(self, problem: int, sample: int, policy: str) -> dict[str, Any]:
        size, name = self.length(), f"train-{problem}"
        return {
            "run": "bench",
            "round": 0,
            "problem_id": name,
            "rollout_id": f"{name}/r00/s{sample}",
            "sample": sample,
            "policy_hash": policy,
            "response_ids": self.ids(size),
            "logprobs": self.logprobs(size),
            "logprobs_mode": "raw_logprobs",
            "finish_reason": "length" if size == LONGEST else "stop",
            "text": "".join(self._draw.choice(WORDS, size)),
            "temperature": 1.0,
            "top_p": 1.0,
            "top_k": 0,
            "max_tokens": LONGEST,
            "seed": int(self._draw.integers(2**31)),
            "engine": "vllm 0.32.0",
            "sampled_at": datetime(2026, 1, 1, tzinfo=UTC),
        }


# Formats --------------------------------------------------------------------------------------------------------------


def formats(folder: Path, mean_tokens: int, rows: int = 1024, repeats: int = 3) -> None:
    """Print one line for each format; MB/s are of ids and log-probs as 8 bytes a token."""
    answers = Answers(mean_tokens)
    made = [answers.row(i // GROUP, i % GROUP, "0" * 16) for i in range(rows)]
    tokens = sum(len(row["response_ids"]) for row in made)
    table = pa.Table.from_pylist(made, schema=tables.schema_of(tables.ROLLOUTS))
    frame = pl.DataFrame(table)
    # float32 as short as JSON can say it, not 17 digits
    short = [row | {"logprobs": [float(str(x)) for x in row["logprobs"]]} for row in made]
    sides: dict[str, tuple[Callable[[Path], Any], Callable[[Path], Any]]] = {
        "plain JSONL": (lambda path: write_jsonl(path, short), read_jsonl),
        "Parquet, pyarrow's defaults": (lambda path: pq.write_table(table, path), pq.read_table),
        "Parquet, polars zstd 3": (
            lambda path: frame.write_parquet(path, compression="zstd", compression_level=3),
            pl.read_parquet,
        ),
        "ours, without page checksums": (lambda path: without_checksums(path, table), pq.read_table),
        "ours": (lambda path: ours(path, table), lambda path: tables.read_table(path, tables.ROLLOUTS)),
        "ours, from rows": (
            lambda path: tables.write_table(path, tables.ROLLOUTS, made),
            lambda path: tables.read_table(path, tables.ROLLOUTS),
        ),
    }
    print(f"{rows} rollouts, {tokens:,} tokens, text included")
    for name, (write, read) in sides.items():
        path = folder / "file"
        writing, reading = (min(timed(action, path) for _ in range(repeats)) for action in (write, read))
        speeds = f"write {8 * tokens / writing / 1e6:6.0f} MB/s read {8 * tokens / reading / 1e6:6.0f} MB/s"
        print(f"{name:30} {path.stat().st_size / tokens:6.2f} bytes/token  {speeds}")
        path.unlink()


def timed(action: Callable[[Path], Any], path: Path) -> float:
    start = time.monotonic()
    action(path)
    return time.monotonic() - start


def write_jsonl(path: Path, rows: list[dict[str, Any]]) -> None:
    with path.open("w") as file:
        for row in rows:
            plain = {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in row.items()}
            file.write(json.dumps(plain, default=str) + "\n")


def read_jsonl(path: Path) -> list[Any]:
    with path.open() as file:
        return [json.loads(line) for line in file]


def ours(path: Path, table: pa.Table) -> None:
    tables.write_batches(path, tables.ROLLOUTS, (table.slice(i, 256) for i in range(0, table.num_rows, 256)))


def without_checksums(path: Path, table: pa.Table) -> None:
    """Write what ``ours`` writes, but for the checksums of pages."""
    writer = pq.ParquetWriter
    with mock.patch.object(pq, "ParquetWriter", lambda *given, **said: writer(*given, **said | _NO_CHECKSUM)):
        ours(path, table)


_NO_CHECKSUM = {"write_page_checksum": False}


# Scale ----------------------------------------------------------------------------------------------------------------


def write_round(folder: Path, rows: int, mean_tokens: int) -> tuple[Run, int]:
    """A run of ``rows`` rollouts with verdicts, 40 % right; also the number of tokens."""
    problems = rows // GROUP
    prompts = {"train": [[5, *range(200)]] * problems, "validation": [[6]], "heldout": [[7]]}
    run = make_run(folder, made_up_model(folder / "model"), prompts)
    answers, policy, tokens = Answers(mean_tokens), policy_hash(run.policy(0)), 0
    draw = np.random.default_rng(1)
    for part, start in enumerate(range(0, problems, PROBLEMS_PER_PART)):
        name, judged = f"part-{part:05d}.parquet", list[dict[str, Any]]()

        def stream(start: int = start, judged: list[dict[str, Any]] = judged) -> Iterator[dict[str, Any]]:
            nonlocal tokens
            for problem in range(start, min(start + PROBLEMS_PER_PART, problems)):
                for sample in range(GROUP):
                    row = answers.row(problem, sample, policy) | {"text": ""}
                    tokens += len(row["response_ids"])
                    judged.append(verdict(row, draw.random() < 0.4))
                    yield row

        with run.writing(run.rollouts(0) / name, {}, {}) as draft:
            draft.rows = tables.write_table(draft.path, tables.ROLLOUTS, stream())
        with run.writing(run.verdicts(0) / name, {}, {}) as draft:
            draft.rows = tables.write_table(draft.path, tables.VERDICTS, judged)
    return run, tokens


def verdict(row: dict[str, Any], right: bool) -> dict[str, Any]:
    empty: dict[str, Any] = dict.fromkeys(name for name, _ in tables.VERDICTS)
    ids = {name: row[name] for name in ("rollout_id", "problem_id")}
    return empty | ids | {"reward": float(right), "correct": right, "outcome": "passed" if right else "wrong_answer"}


def group(run: Run) -> str:
    build(run, 0)
    return f"{tables.count_rows(run.groups(0)):,} rows, {run.groups(0).stat().st_size / 1e6:,.0f} MB"


def read_shuffled(run: Run) -> str:
    """Every row once, in a training epoch's order, as micro-batches of one."""
    examples = read_examples(run.groups(0), policy_hash(run.policy(0)), run.policy(0))
    order = epoch_order(len(examples.lengths), 0, 0, 1)
    start = time.monotonic()
    tokens = sum(int(examples.batch([row]).length_S[0]) for row in order)
    seconds = time.monotonic() - start
    return f"{tokens:,} tokens, {1e3 * seconds / len(order):.2f} ms a row, {tokens / seconds / 1e6:.1f} M tokens/s"


def scale(folder: Path, rows: list[int], mean_tokens: int) -> None:
    """Print time and peak memory of each step at each size."""
    for count in rows:
        home = folder / str(count)
        steps = [("write", str(count), str(mean_tokens)), ("group",), ("read",)]
        for step, *arguments in steps:
            command = [sys.executable, "-m", "bench.store", "step", step, str(home), *arguments]
            print(f"{count:7,} rollouts  {subprocess.check_output(command, text=True).splitlines()[-1]}", flush=True)


def one_step(step: str, home: Path, *sizes: str) -> str:
    start = time.monotonic()
    if step == "write":
        run, tokens = write_round(home, *map(int, sizes))
        size = sum(path.stat().st_size for path in run.rollouts(0).iterdir())
        what = f"{tokens:,} tokens, {size / 1e6:,.0f} MB, {size / tokens:.2f} bytes/token"
    else:
        run = Run.open(next(home.glob("sampled-*")))
        what = group(run) if step == "group" else read_shuffled(run)
    seconds, peak = time.monotonic() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return f"{step:6} {seconds:6.1f} s  peak {peak:5.0f} MiB  {what}"


def main() -> None:
    if sys.argv[1:2] == ["step"]:
        print(one_step(sys.argv[2], Path(sys.argv[3]), *sys.argv[4:]))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("formats", "scale"))
    parser.add_argument("--rows", type=int, nargs="+", default=[50_000, 100_000, 200_000])
    parser.add_argument("--tokens", type=int)
    parser.add_argument("--folder", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        if args.part == "formats":
            formats(Path(folder), args.tokens or 2000)
        else:
            scale(Path(folder), args.rows, args.tokens or 500)


if __name__ == "__main__":
    main()
