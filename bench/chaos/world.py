"""A place to hurt runs in: an undisturbed run of each variant, put back before each trial, and `oapl` on it.

Reads and writes below one folder. A variant's run always lies at the same path, since a mirror's URL and a card's paths
are absolute; its undisturbed state lies beside it.
"""

import ctypes
import mmap
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from bench.chaos.family import MARK, Family
from oapl_core.run_folder.run import Run

ROOT = Path(__file__).resolve().parents[2]
EXPERIMENT = ROOT / "bench" / "chaos" / "experiment.toml"
LIMIT_S = 420.0
"""A command that has not ended by then hangs."""
SERVER_START_S = 120.0
"""Seconds that Prefect's server may take to start."""
VARIANTS: dict[str, tuple[str, ...]] = {
    "plain": (),
    "pipeline": ("pipeline={}",),
    "ranks": (
        *("training.processes=2", "training.zero_stage=2", 'training.optimizer_state="continued"'),
        *("training.warmup_share=0", "training.floor_share=1", "engine.replicas=2"),
    ),
    "mirror": ('mirror="file://{folder}/mirror"',),
}


@dataclass(frozen=True)
class Ended:
    """One command that came to its end, or was ended because it hung."""

    code: int | None
    """None: it hung."""
    output: str
    seconds: float

    @property
    def error(self) -> str:
        """Its one line that says what is wrong; empty if there is none."""
        lines = [line for line in self.output.splitlines() if line.startswith("error: ")]
        return lines[-1] if lines else ""

    @property
    def wrong(self) -> str | None:
        """Why no user should see such an end; None if it is a good one."""
        if self.code is None:
            return f"hung for {self.seconds:.0f} s; last line: {last_line(self.output)}"
        if "Traceback (most recent call last)" in self.output:
            return f"traceback, exit {self.code}: {last_line(self.output)}"
        if self.code not in (0, 137, -9, -15, -2, 130, 143) and not self.error:
            return f"exit {self.code} without a line that says why: {last_line(self.output)}"
        return None


def last_line(text: str) -> str:
    """The last line that says something."""
    return next((line.strip()[:300] for line in reversed(text.splitlines()) if line.strip()), "(nothing)")


class World:
    """One variant's run below ``folder`` and what hurts it."""

    def __init__(self, folder: Path, variant: str, faults: Path, server: str | None = None) -> None:
        """``faults`` makes calls fail (``built_faults``); ``server`` is the URL of Prefect's."""
        self.folder, self.variant = folder / variant, variant
        self.family = Family(str(self.folder))
        """Processes of the trial."""
        self._faults, self._server = faults, server
        self.uses_server = False
        """Whether runs use ``server``."""
        self._whole = folder / f"{variant}.whole"

    @property
    def run_dir(self) -> Path:
        """The run that is hurt."""
        return self.folder / "runs" / "chaos-seed0"

    @property
    def temporary(self) -> Path:
        """TMPDIR of a trial's processes."""
        return self.folder / "tmp"

    @property
    def command(self) -> list[str]:
        """`oapl run` of the experiment file, with this variant's settings."""
        places = [f'runs_dir="{self.folder}/runs"', f'cache_dir="{self.folder}/cache"']
        changes = [change.replace("{folder}", str(self.folder)) for change in VARIANTS[self.variant]]
        return ["run", str(EXPERIMENT), *places, *changes]

    @cached_property
    def undisturbed(self) -> Run:
        """The run that nothing hurt, made at the first call."""
        done = self._whole / "done"
        if not done.exists():
            for old in (self._whole, self.folder):
                shutil.rmtree(old, ignore_errors=True)
            self.folder.mkdir(parents=True)
            ended = self.oapl(self.command)
            if ended.code != 0:
                raise SystemExit(f"the undisturbed run of {self.variant} failed: {ended.output[-3000:]}")
            self.folder.rename(self._whole)
            done.touch()
        return Run.open(self._whole / "runs" / "chaos-seed0")

    def restore(self) -> Run:
        """Put the whole run back, with its times; returns it."""
        _ = self.undisturbed
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(self._whole, self.folder, symlinks=True)
        (self.folder / "done").unlink()
        self.temporary.mkdir(exist_ok=True)
        return Run.open(self.run_dir)

    @cached_property
    def seconds(self) -> dict[str, float]:
        """Wall time of each stage of the undisturbed run, by label."""
        return {entry.stage: entry.seconds for entry in self.undisturbed.ledger.stages()}

    def environment(self, below: Path | None = None) -> dict[str, str]:
        """Variables of a trial's processes; with ``below``, calls on files whose paths begin so can be made to fail."""
        self.temporary.mkdir(parents=True, exist_ok=True)
        found = os.environ | {MARK: str(self.folder), "TMPDIR": str(self.temporary), "PYTHONPATH": str(ROOT)}
        if self._server and self.uses_server:
            found["PREFECT_API_URL"] = self._server
        if below:
            Control(self.folder / "control").set()
            found |= {"LD_PRELOAD": str(self._faults), "CHAOS_BELOW": str(below)}
            found["CHAOS_CONTROL"] = str(self.folder / "control")
        return found

    def start(
        self, arguments: Sequence[str], below: Path | None = None, limits: Sequence[str] = (), output: str = "output"
    ) -> "Started":
        """Start `oapl`; ``limits`` are words of util-linux's prlimit."""
        command = [*limits, sys.executable, "-m", "deployments.cli", *arguments]
        return Started(command, self.environment(below), self.folder / output, self.family)

    def oapl(self, arguments: Sequence[str], limit_s: float = LIMIT_S) -> Ended:
        """Run `oapl` to its end."""
        with self.start(arguments) as started:
            return started.wait(limit_s)

    def left_in_temporary(self) -> set[str]:
        """Names in TMPDIR that the undisturbed run did not leave there (torch leaves a cache)."""
        usual = {path.name for path in (self._whole / "tmp").iterdir()}
        return {path.name for path in self.temporary.iterdir()} - usual

    def leftovers(self, grace_s: float = 10.0) -> list[str]:
        """Command lines of processes that a trial left; ends them."""
        deadline = time.monotonic() + grace_s
        while (found := self.family.living()) and time.monotonic() < deadline:
            time.sleep(0.25)
        for process in found:
            signal_to(process, signal.SIGKILL)
        return [found[process][:150] for process in found]


@contextmanager
def prefect_server(folder: Path) -> Iterator[str]:
    """A Prefect server with a database of its own, for runs that use one that was there before; yields its URL."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    url, home = f"http://127.0.0.1:{port}/api", folder / "prefect"
    home.mkdir(parents=True, exist_ok=True)
    database = f"sqlite+aiosqlite:///file:{home}/prefect.db?uri=true&one=:memory:"  # as `make server` says
    environment = os.environ | {"PREFECT_HOME": str(home), "PREFECT_API_DATABASE_CONNECTION_URL": database}
    command = [sys.executable, "-m", "prefect", "server", "start", "--no-ui", "--host", "127.0.0.1", "--port", port]
    with (home / "log").open("wb") as log:
        server = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        try:
            _wait_for_answer(server, f"{url}/health", home / "log")
            yield url
        finally:
            server.terminate()
            server.wait()


def _wait_for_answer(server: subprocess.Popen[bytes], url: str, log: Path) -> None:
    """Wait until ``server`` answers; ends the harness with a line if it died or says nothing for two minutes."""
    deadline = time.monotonic() + SERVER_START_S
    while time.monotonic() < deadline and server.poll() is None:
        with suppress(OSError), urllib.request.urlopen(url, timeout=5.0):
            return
        time.sleep(0.2)
    how = "does not answer" if server.poll() is None else f"ended with code {server.poll()}"
    raise SystemExit(f"Prefect's server {how}; see {log}")


class Started:
    """A command in a session of its own; leaving the context ends it if it still runs."""

    def __init__(self, command: Sequence[str], environment: dict[str, str], output: Path, family: Family) -> None:
        """``family`` gets to know every process that descends from it."""
        self._began, self._output = time.monotonic(), output
        self._file = output.open("wb")
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=self._file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._watched = family.watched(self.process.pid)

    def __enter__(self) -> "Started":
        self._watched.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._watched.__exit__(None, None, None)
        self._file.close()

    @property
    def is_over(self) -> bool:
        """Whether it has ended, so that nothing can hurt it any more."""
        return self.process.poll() is not None

    @property
    def output(self) -> str:
        """What it has printed."""
        return self._output.read_text(errors="replace")

    def wait_until(self, condition: Callable[[], bool], limit_s: float) -> bool:
        """Whether ``condition`` came true while it ran."""
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline and self.process.poll() is None:
            if condition():
                return True
            time.sleep(0.02)
        return False

    def sleep(self, seconds: float) -> None:
        """Sleep as long as it runs."""
        self.wait_until(lambda: False, seconds)

    def wait(self, limit_s: float) -> Ended:
        """Wait for its end; a command that hangs is ended with all that it started, by its orchestrator's death."""
        code: int | None
        try:
            code = self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = None
            self.process.kill()
            self.process.wait()
        return Ended(code, self.output, time.monotonic() - self._began)


class Control:
    """The file by which calls fail and clocks jump in running processes."""

    def __init__(self, path: Path) -> None:
        if not path.exists() or path.stat().st_size != 24:
            path.write_bytes(bytes(24))
        self._path = path

    def set(self, error: int = 0, percent: int = 0, ahead_s: int = 0) -> None:
        """From now on so many calls in a hundred fail with ``error``; clocks are ``ahead_s`` seconds ahead."""
        with self._path.open("r+b") as file, mmap.mmap(file.fileno(), 24) as mapped:
            mapped[8:] = struct.pack("qq", percent, ahead_s)
            mapped[:8] = struct.pack("q", error)


def built_faults(folder: Path) -> Path:
    """The library that makes calls fail, compiled; ends the harness with a line where there is no compiler."""
    target = folder / "faults.so"
    source = ROOT / "bench" / "chaos" / "faults.c"
    if shutil.which("gcc") is None:  # without it disks and clocks would stay well, and their trials would hold
        raise SystemExit("gcc is missing: it makes the library by which disks fail and clocks jump")
    command = ["gcc", "-shared", "-fPIC", "-O1", "-o", str(target), str(source), "-ldl"]
    subprocess.run(command, check=True, capture_output=True)
    ctypes.CDLL(str(target))
    return target


def signal_to(process: int, number: int) -> bool:
    """Send a signal to a process that may be gone; whether it was there."""
    try:
        os.kill(process, number)
    except ProcessLookupError:
        return False
    return True


@contextmanager
def stopped(process: int, seconds: float) -> Iterator[None]:
    """Stop a process for a while."""
    signal_to(process, signal.SIGSTOP)
    try:
        time.sleep(seconds)
        yield
    finally:
        signal_to(process, signal.SIGCONT)
