"""What the harness that most projects share gets wrong is judged right here, at both levels.

LiveCodeBench's checker runs a program in its grading process, behind a guard. Each of EXPLOITS earns a full reward
there, and each of HONEST none. `python -m tests.core.verdicts.test_livecodebench_faults DIR` says so for a checkout
DIR of it, and runs these programs without isolation.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from oapl_core import tables
from oapl_core.sandbox.sandbox import Level
from oapl_core.settings.verifier import VerifierConfig
from oapl_core.verdicts.verifier import Verifier
from tests import sandboxes

EMPTY = dict.fromkeys((name for name, _ in tables.PROBLEMS), None)
SUM: dict[str, Any] = EMPTY | {
    "problem_id": "sum",
    "kind": "stdin",
    "tests": [{"input": f"{i} {i}\n", "output": f"{2 * i}\n"} for i in range(1, 7)],
}
PAIR: dict[str, Any] = EMPTY | {
    "problem_id": "pair",
    "kind": "function",
    "entry_point": "f",
    "tests": [{"input": f"[{i}]", "output": f"[{i}, [{i}]]"} for i in range(6)],
}

EXPLOITS = {
    "frame walk": """
import sys
def f(a):
    frame = sys._getframe()
    while frame:
        if "gt_out" in frame.f_locals: return frame.f_locals["gt_out"]
        frame = frame.f_back
""",
    "always equal": """
class Equal:
    def __eq__(self, other): return True
def f(a): return Equal()
""",
    "forged list and _exit": """
import os, sys
def f(a):
    frame = sys._getframe()
    while frame:
        if "metadata_list" in frame.f_locals:
            frame.f_locals["result"].append([True] * 6)
            frame.f_locals["metadata_list"].append({})
            os._exit(0)
        frame = frame.f_back
""",
    "pickle payload": """
class Payload:
    def __reduce__(self): return eval, ("True",)
class Equal:
    def __eq__(self, other): return Payload()
def f(a): return Equal()
""",
}

HONEST = {
    "buffer I/O": (SUM, "import sys\nsys.stdout.buffer.write(b'%d' % sum(map(int, sys.stdin.buffer.read().split())))"),
    "global": (SUM, "t = 0\ndef add(v):\n    global t\n    t += int(v)\nfor v in input().split(): add(v)\nprint(t)"),
    "quit()": (SUM, "print(sum(map(int, input().split())))\nquit()"),
    "os.read(0)": (SUM, "import os\nprint(sum(map(int, os.read(0, 1000).split())))"),
    "numpy result": (PAIR, "import numpy as np\ndef f(a): return np.array([a, [a]], dtype=object)"),
    "nested tuple": (PAIR, "def f(a): return a, (a,)"),
}


@pytest.fixture(scope="module", params=sandboxes.LEVELS)
def verifier(request: pytest.FixtureRequest) -> Iterator[Verifier]:
    level: Level = request.param
    sandboxes.require(level)
    with Verifier(VerifierConfig(workers=2, cpu_s=2, wall_s=6), level=level) as started:
        yield started


@pytest.mark.parametrize("name", EXPLOITS)
def test_a_known_exploit_earns_nothing(name: str, verifier: Verifier) -> None:
    (verdict,) = verifier.verify([PAIR], [f"```python\n{EXPLOITS[name]}\n```"], ["stop"])
    assert verdict.reward == 0.0, verdict
    assert verdict.tests_passed == 0


@pytest.mark.parametrize("name", HONEST)
def test_a_known_false_zero_earns_its_reward(name: str, verifier: Verifier) -> None:
    problem, source = HONEST[name]
    (verdict,) = verifier.verify([problem], [f"```python\n{source}\n```"], ["stop"])
    assert (verdict.reward, verdict.tests_passed) == (1.0, 6), verdict


def compare(checkout: Path) -> None:
    """Prints what LiveCodeBench's own checker says about each program."""
    from bench.bench_programs import Case
    from bench.livecodebench import Checker

    cases = [Case(name, PAIR, source) for name, source in EXPLOITS.items()]
    cases += [Case(name, problem, source) for name, (problem, source) in HONEST.items()]
    with Checker(checkout) as checker:
        passed, _ = checker.judge(cases, workers=1)
    for case, accepted in zip(cases, passed, strict=True):
        print(f"{case.name:<24} {'passes' if accepted else 'fails'} there")


if __name__ == "__main__":
    compare(Path(sys.argv[1]))
