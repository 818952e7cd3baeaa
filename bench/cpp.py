"""Judging C++ beside compiling and running the same by hand: ``python -m bench.cpp``.

    --tests N ...    tests of a program (1 10 40); --programs N: programs in each measurement (12)
    --repeats N      measurements, sides alternating (5); --workers N: processes on each side (2)

Both sides compile the same programs, all different, with the same command, and run each on the same tests. By hand is
``posix_spawn`` of the compiler and of the executable, with files for input and output, a wait, and a comparison: no
limits, no isolation, no clock.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from oapl_core import tables
from oapl_core.languages import language
from oapl_core.settings.verifier import VerifierConfig
from oapl_core.verdicts.extraction import fenced
from oapl_core.verdicts.outcomes import Outcome
from oapl_core.verdicts.verifier import Verifier
from tests.cpp_problems import CPP_PROBLEMS

CPP = language("cpp")
Case = tuple[dict[str, Any], str]
"""A problem row and a program."""


def cases(count: int, tests: int, salt: int) -> list[Case]:
    """Programs that are right, none of which was compiled before."""
    row: dict[str, Any] = {name: None for name, _ in tables.PROBLEMS}
    found = list[Case]()
    for number in range(count):
        problem = CPP_PROBLEMS[number % len(CPP_PROBLEMS)]
        own = [problem.tests[i % len(problem.tests)] for i in range(tests)]
        named = {"problem_id": f"{salt}-{number}", "kind": "stdin", "tests": own, "language": "cpp"}
        found.append((row | named, f"// {salt} {number}\n{problem.solution}"))
    return found


def by_hand(asked: Sequence[Case], workers: int) -> float:
    """Seconds for all of them."""
    start = time.perf_counter()
    with ThreadPoolExecutor(workers) as threads:
        assert all(threads.map(_passes, asked))
    return time.perf_counter() - start


def _passes(case: Case) -> bool:
    problem, source = case
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:  # in memory, as the sandbox's private folders are
        Path(folder, CPP.file).write_text(source)
        made = str(Path(folder, CPP.executable))
        command = [part if part not in (CPP.file, CPP.executable) else str(Path(folder, part)) for part in CPP.compile]
        if _run([CPP.tool(command[0]), *command[1:]], Path(os.devnull), Path(os.devnull)):
            return False
        given, printed = Path(folder, "input"), Path(folder, "output")
        for test in problem["tests"]:
            given.write_text(test["input"])
            if _run([made], given, printed) or printed.read_text().split() != test["output"].split():
                return False
    return True


def _run(command: list[str], given: Path, printed: Path) -> int:
    files = [
        (os.POSIX_SPAWN_OPEN, 0, str(given), os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, str(printed), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600),
    ]
    return os.waitpid(os.posix_spawn(command[0], command, os.environ, file_actions=files), 0)[1]


def judged(verifier: Verifier, asked: Sequence[Case]) -> float:
    """Seconds for all of them."""
    start = time.perf_counter()
    problems, texts = [problem for problem, _ in asked], [fenced(source, CPP.fences[0]) for _, source in asked]
    verdicts = verifier.verify(problems, texts, ["stop"] * len(texts))
    seconds = time.perf_counter() - start
    assert all(verdict.outcome is Outcome.PASSED for verdict in verdicts), verdicts
    return seconds


def main() -> None:
    """Prints a line for each number of tests."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tests", type=int, nargs="+", default=[1, 10, 40])
    for name, default in (("programs", 12), ("repeats", 5), ("workers", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    chosen = parser.parse_args()
    print(f"{CPP.found_version()}; {chosen.programs} programs, {chosen.workers} processes on each side", flush=True)
    with Verifier(VerifierConfig(workers=chosen.workers), reuse_identical=False) as verifier:
        judged(verifier, cases(2, 1, -1))  # its servers start with the first program
        for tests in chosen.tests:
            times = list[tuple[float, float]]()
            for number in range(chosen.repeats):
                ours = judged(verifier, cases(chosen.programs, tests, 2 * number))
                times.append((ours, by_hand(cases(chosen.programs, tests, 2 * number + 1), chosen.workers)))
                print(f"    {ours:.2f} s against {times[-1][1]:.2f} s", flush=True)
            ours, theirs = (statistics.median(side) for side in zip(*times, strict=True))
            best = min(a for a, _ in times) / min(b for _, b in times)
            rate = chosen.programs / ours
            print(
                f"{tests} tests: {rate:.2f} programs/s; {ours / theirs:.2f} times by hand ({best:.2f} at best)",
                flush=True,
            )


if __name__ == "__main__":
    main()
