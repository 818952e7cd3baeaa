"""Commands as processes of their own, several at once; each has a log, and one that fails is said at the end."""

import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path


def run_at_once(commands: Mapping[str, Sequence[str]], logs: Path, at_once: int, what: str) -> None:
    """Run Python with each command's arguments, by name, and show how many are done.

    ``logs`` gets NAME.log of each; ``what`` names them in the progress.

    Raises:
        SystemExit: a command failed.
    """
    logs.mkdir(parents=True, exist_ok=True)
    waiting, running, failed = list(commands), dict[str, subprocess.Popen[bytes]](), list[str]()
    began = time.monotonic()
    while waiting or running:
        while waiting and len(running) < at_once:
            name = waiting.pop(0)
            with (logs / f"{name}.log").open("wb") as log:
                running[name] = subprocess.Popen([sys.executable, *commands[name]], stdout=log, stderr=log)
        for name in [name for name, process in running.items() if process.poll() is not None]:
            if running.pop(name).returncode:
                failed.append(name)
            done = len(commands) - len(waiting) - len(running)
            print(f"{what} {done}/{len(commands)} | {time.monotonic() - began:.0f} s | {name}", flush=True)
        time.sleep(0.2)
    if failed:
        sys.exit(f"{', '.join(failed)} failed; their output is in {logs}")
