"""How fast answers are judged: ``python -m pytest -m bench -s tests/bench/test_verifier_speed.py`` prints the numbers.

MATHS_FILE names a JSON-lines file with an "answer" in each row; without it the maths measurement is skipped.
"""

import json
import os
import statistics
import time
from pathlib import Path

import pytest

from oapl_core.sandbox import Limits, Program
from oapl_core.sandbox.sandbox import Sandbox
from oapl_core.verdicts.maths_pool import MathsPool
from oapl_core.verdicts.programs import grade_program
from tests import sandboxes

pytestmark = pytest.mark.bench
LIMITS = Limits()
SOURCE = "print(sum(map(int, input().split())))"
TESTS = [{"input": f"{i} {i}\n", "output": f"{2 * i}\n"} for i in range(40)]


def _percentiles(seconds: list[float]) -> str:
    ordered = sorted(seconds)
    return f"median {1000 * statistics.median(ordered):.1f} ms, p99 {1000 * ordered[int(0.99 * len(ordered))]:.1f} ms"


def test_programs() -> None:
    with sandboxes.sandbox(workers=len(os.sched_getaffinity(0))) as sandbox:
        _throughput(sandbox, tests=1, programs=1500)
        _throughput(sandbox, tests=6, programs=1000)
        _throughput(sandbox, tests=40, programs=200)
        seconds = []
        for _ in range(400):
            start = time.perf_counter()
            sandbox.run(Program(SOURCE), [b"1 2"], LIMITS)
            seconds.append(time.perf_counter() - start)
        print(f"\none program, one test, nothing else running: {_percentiles(seconds)}")


def _throughput(sandbox: Sandbox, tests: int, programs: int) -> None:
    start = time.perf_counter()
    grades = list(sandbox.stream(lambda _: grade_program(sandbox, SOURCE, TESTS[:tests], LIMITS), range(programs)))
    seconds = time.perf_counter() - start
    assert all(grade.tests_passed == tests for grade in grades)
    print(
        f"\n{sandbox.level}, {sandbox.workers} servers, {tests} tests per program: "
        f"{programs / seconds:.0f} programs/s, {programs * tests / seconds:.0f} tests/s"
    )


@pytest.mark.parametrize("perturbed", [False, True], ids=["gold against gold", "gold against gold + 1"])
def test_maths(perturbed: bool) -> None:
    path = os.environ.get("MATHS_FILE")
    if not path:
        pytest.skip("set MATHS_FILE")
    golds = [json.loads(line)["answer"] for line in Path(path).read_text().splitlines()]
    answers = [f"{gold} + 1" if perturbed else gold for gold in golds]
    workers = len(os.sched_getaffinity(0))
    pool = MathsPool(workers)
    seconds: list[float] = []
    with Sandbox(workers) as sandbox:  # only for its ordered stream over threads

        def judge(pair: tuple[str, str]) -> dict[str, bool]:
            start = time.perf_counter()
            reply = pool.judge(*pair)
            seconds.append(time.perf_counter() - start)
            return reply

        list(sandbox.stream(judge, [("1/2", "1/3")] * 4 * workers))
        seconds.clear()
        start = time.perf_counter()
        replies = list(sandbox.stream(judge, list(zip(golds, answers, strict=True))))
        total = time.perf_counter() - start
    pool.close()
    equal, parsed = sum(r["equal"] for r in replies), sum(r["parsed"] for r in replies)
    print(
        f"\n{len(golds) / total:.0f} maths answers/s on {workers} workers, {_percentiles(seconds)}; "
        f"{equal} equal, {parsed} parsed"
    )
