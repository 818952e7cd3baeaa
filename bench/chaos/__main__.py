"""Hurts whole runs at random, gives the same command to the end, compares: ``python -m bench.chaos --to DIR``.

One fault a trial, drawn from the trial's number (``trial.py``), on one of four variants of a small experiment
(``experiment.toml``, ``world.py``). Each trial is a line of DIR/trials.jsonl; a trial that has one is not repeated, so
a stopped harness resumes. ``--collect DIR ...`` copies the lines to docs/benchmarks/data/chaos.jsonl; ``--page`` makes
the tables of docs/benchmarks/chaos.md from those. Exit code 1 if a trial came out wrong.
"""

import argparse
import json
import subprocess
import time
from pathlib import Path
from typing import Any

from bench.chaos.page import DATA, PAGE, hit_nothing, page
from bench.chaos.trial import Trial
from bench.chaos.world import ROOT, VARIANTS, World, built_faults, prefect_server


def main() -> int:
    """Try, collect, or make the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--to", type=Path, help="folder for runs and results")
    parser.add_argument("--trials", type=int, default=200, help="how many")
    parser.add_argument("--first", type=int, default=0, help="number of the first, its seed")
    parser.add_argument("--only", nargs="*", default=[], help="kinds of fault and variants; others are not drawn")
    parser.add_argument("--collect", type=Path, nargs="*", help="folders whose trials become the page's data")
    parser.add_argument("--page", action="store_true", help="make the tables of the page")
    options = parser.parse_args()
    failed = attempt(options.to, options.first, options.trials, options.only) if options.to else 0
    if options.collect:
        DATA.write_text("".join(collected(options.collect)))
    if options.page:
        PAGE.write_text(page(PAGE.read_text(), [json.loads(line) for line in DATA.read_text().splitlines()]))
    return 1 if failed else 0


def attempt(to: Path, first: int, trials: int, only: list[str]) -> int:
    """Carry out the trials that have no line yet; returns how many of all came out wrong."""
    to = to.resolve()
    to.mkdir(parents=True, exist_ok=True)
    results, faults, commit = to / "trials.jsonl", built_faults(to), commit_of()
    done = {line["trial"]: line for line in (json.loads(text) for text in _lines(results))}
    began, tried, failed = time.monotonic(), 0, 0
    with prefect_server(to) as server:
        worlds = {name: World(to, name, faults, server) for name in VARIANTS}
        for number in range(first, first + trials):
            line: dict[str, Any] | None = done.get(number)
            if line is None:
                outcome = Trial(number, worlds.__getitem__, only).carry_out()
                line = json.loads(outcome.line) | {"commit": commit, "only": only}
                with results.open("a") as file:
                    file.write(json.dumps(line) + "\n")
                tried += 1
                _say(line, number - first + 1, trials, (time.monotonic() - began) / tried)
            failed += bool(line["wrong"])
    return failed


def _say(line: dict[str, Any], done: int, total: int, each_s: float) -> None:
    left = (total - done) * each_s / 60
    verdict = "FAILED: " + "; ".join(line["wrong"]) if line["wrong"] else "held"
    if hit_nothing(line):
        verdict += ", but nothing was hit"
    what = f"{line['fault']} on {line['variant']}: {line['what']}"
    print(f"{done}/{total} trials, {left:.0f} min left | {line['trial']} {what} | {verdict}", flush=True)


def collected(folders: list[Path]) -> list[str]:
    """Lines of several harnesses by number of the trial."""
    lines = [json.loads(text) for folder in folders for text in _lines(folder / "trials.jsonl")]
    return [json.dumps(line, sort_keys=True) + "\n" for line in sorted(lines, key=lambda line: line["trial"])]


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def commit_of() -> str:
    """The code that is tried."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


if __name__ == "__main__":
    raise SystemExit(main())
