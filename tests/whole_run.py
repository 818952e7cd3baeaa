"""Whole runs through the command line: a scaled-down demo, a way to kill one at a chosen moment, and what it made."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import pytest

from deployments.cli import main
from oapl_core.model_files.model_folder import policy_hash
from oapl_core.run_folder.ledger import ArtifactEntry
from oapl_core.run_folder.run import Run

ROOT = Path(__file__).resolve().parent.parent
DEMO = ROOT / "data" / "demo"
EXPERIMENT = ROOT / "deployments" / "experiments" / "demo.toml"

CLOCKS = ("sampled_at", "cpu_s", "wall_s", "peak_memory_mb")
"""Columns that clock or kernel fill; everything else is the same when an artifact is made again."""


def small_demo(
    folder: Path, train: int = 96, heldout: int = 12, validation: int = 12, solutions: int | None = None
) -> list[str]:
    """Arguments of `oapl run` for the demo with few problems, few epochs and folders of its own.

    The base learns from ``solutions``; None: from as many as there are problems to train on.
    """
    sets = {"train": train, "validation": validation, "heldout": heldout, "solutions": solutions or train}
    for name, rows in sets.items():
        lines = (DEMO / f"{name}.jsonl").read_text().splitlines()[:rows]
        (folder / f"{name}.jsonl").write_text("".join(line + "\n" for line in lines))
    changes = {
        "runs_dir": folder / "runs",
        "cache_dir": folder / "cache",
        **{f"problems.{split}": folder / f"{split}.jsonl" for split in ("train", "validation", "heldout")},
        "pretrain.solutions": folder / "solutions.jsonl",
        "pretrain.epochs": 8,
        "pretrain.batch_size": 16,
        "pretrain.threads": 1,
        "sampling.group_size": 4,
        "sampling.problems_per_part": 8,
        "engine.max_num_seqs": 32,
        "training.batch_size": 16,
        "rounds.1.problems": 24,
        "rounds.1.epochs": 2,
        "evaluation.validation_samples": 2,
        "evaluation.heldout_samples": 4,
    }
    return [str(EXPERIMENT), *(f"{key}={value}" for key, value in changes.items())]


def command(arguments: list[str]) -> list[str]:
    """The `oapl` command of this interpreter."""
    return [sys.executable, "-m", "deployments.cli", *arguments]


def called(*arguments: object) -> subprocess.CompletedProcess[str]:
    """What the `oapl` command says and returns, in this process: another takes seconds to start."""
    with ExitStack() as stack:
        output, errors = (stack.enter_context(tempfile.TemporaryFile("w+")) for _ in range(2))
        for file, descriptor in ((output, 1), (errors, 2)):  # stages that it starts inherit these
            kept = os.dup(descriptor)
            stack.callback(os.close, kept)
            stack.callback(os.dup2, kept, descriptor)
            os.dup2(file.fileno(), descriptor)
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setattr(sys, "argv", ["oapl", *map(str, arguments)])
        patch.chdir(ROOT)
        stack.enter_context(redirect_stdout(output))
        stack.enter_context(redirect_stderr(errors))
        try:
            code = main()
        except SystemExit as ended:  # typer's own end
            code = int(ended.code or 0)
        for file in (output, errors):
            file.flush()
            file.seek(0)
        said = output.read(), errors.read()
    return subprocess.CompletedProcess(list(map(str, arguments)), code, *said)


def oapl(arguments: list[str]) -> str:
    """Run `oapl` to its end and give its output; it must succeed."""
    done = subprocess.run(command(arguments), cwd=ROOT, capture_output=True, text=True, timeout=2700)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def kill_when(arguments: list[str], log: Path, moment: Callable[[], bool]) -> None:
    """Start `oapl`, end its process group with SIGKILL at ``moment``, and wait until nothing of it is left."""
    with log.open("w") as sink:
        process = psutil.Popen(command(arguments), cwd=ROOT, stdout=sink, stderr=sink, start_new_session=True)
        family: set[psutil.Process] = set()
        looked = 0.0
        try:
            while not moment():
                assert process.poll() is None, f"ended before it could be killed: {log.read_text()[-3000:]}"
                if time.monotonic() > looked + 1.0:  # it reads about every process of the machine
                    family |= set(process.children(recursive=True))
                    looked = time.monotonic()
                time.sleep(0.05)
            family |= set(process.children(recursive=True))
        finally:  # Ctrl-C of the tests does not reach another session
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    _, alive = psutil.wait_procs(family, timeout=30)
    assert not alive, f"left behind: {alive}"


def content(run: Run, entry: ArtifactEntry) -> Any:
    """What an artifact says, without the clock: rows of a table, identity of a checkpoint, results of a card."""
    path = run.root / entry.artifact
    if path.suffix == ".json":
        found = json.loads(path.read_text())
        # of a card, which names models by their place; measures after a round are compared whole
        return {part: found[part] for part in ("asked", "results")} if "results" in found else found
    if path.suffix == ".md":
        return None  # for people, of the card beside it
    if path.is_dir():
        return policy_hash(path)
    return [{k: v for k, v in row.items() if k not in CLOCKS} for row in pq.read_table(path).to_pylist()]


def made_more_than_once(run: Run) -> list[str]:
    """Artifacts that the ledger records twice."""
    lines = [json.loads(line) for line in (run.root / "ledger.jsonl").read_text().splitlines()]
    names = [line["artifact"] for line in lines if line["kind"] == "artifact"]
    return sorted({name for name in names if names.count(name) > 1})
