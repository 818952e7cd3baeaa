"""Problems and answers of the verifier's benchmark: made here, seeded, all different, right and wrong ones mixed.

Reads and writes nothing. Short programs come from the demo's generator (chains of list operations), half of the answers
with one wrong line; CPU-bound ones are loops of about a second; `known_differences` are honest programs and exploits
that the common harness is known to misjudge.
"""

from __future__ import annotations

import json
import random
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from data.demo import programs as demo

KINDS = ("stdin", "function")


@dataclass(frozen=True)
class Case:
    """One answer to one problem."""

    name: str
    problem: dict[str, Any]
    """As a row of tables.PROBLEMS, as far as the verifier looks at it."""
    code: str
    passes: bool | None = None
    """What it deserves, where that is known by construction."""

    @property
    def response(self) -> str:
        """What a model would have said."""
        return f"```python\n{self.code}\n```"


def problem(name: str, kind: str, tests: list[dict[str, str]], entry_point: str = "solve") -> dict[str, Any]:
    """A problem row; `tests` as in tables.PROBLEMS."""
    return {
        "problem_id": name,
        "kind": kind,
        "tests": tests,
        "entry_point": entry_point if kind == "function" else None,
        "answer": None,
    }


def short(count: int, tests: int, seed: int = 0) -> list[Case]:
    """`count` different short programs, one for each problem, with `tests` tests each; every second one has a fault."""
    rng = random.Random(seed)
    cases: dict[str, Case] = {}
    drawn = _chains(rng)
    while len(cases) < count:
        kind, chain = next(drawn)
        made = _tests(rng, kind, chain, tests)
        right = demo.code(kind, chain, [0] * len(chain))
        wrong = demo.code(kind, chain, rng.choice(demo.single_faults(chain)))
        code = wrong if len(cases) % 2 else right
        if made and code not in cases:
            passes = all(demo.run(kind, code, numbers) == output for numbers, output in made)
            rows = [_row(kind, numbers, output) for numbers, output in made]
            name = f"short-{len(cases)}"
            cases[code] = Case(name, problem(name, kind, rows), code, passes)
    return list(cases.values())


def _chains(rng: random.Random) -> Iterator[tuple[str, list[demo.Step]]]:
    while True:
        for kind in KINDS:
            yield kind, demo.draw_chain(rng, 4)


def _tests(rng: random.Random, kind: str, chain: list[demo.Step], count: int) -> list[tuple[list[int], str]]:
    """`count` inputs on which the right program prints something; empty if the chain has too few."""
    right = demo.code(kind, chain, [0] * len(chain))
    found = []
    for _ in range(5 * count):
        numbers = [rng.randint(-9, 20) for _ in range(rng.randint(6, 9))]
        output = demo.run(kind, right, numbers)
        if output not in (None, "", "[]"):
            found.append((numbers, output))
        if len(found) == count:
            return found
    return []


def _row(kind: str, numbers: list[int], output: str) -> dict[str, str]:
    if kind == "function":
        return {"input": json.dumps([numbers]), "output": output}
    return {"input": " ".join(map(str, numbers)) + "\n", "output": f"{output}\n"}


_LOOPS = (
    "x = {n}\nfor _ in range({steps}):\n    x = (x * 1103515245 + 12345) % 2147483648\nprint(x)",
    "n = {steps} // 3 + {n}\nmarks = [True] * n\nfor i in range(2, n):\n    if marks[i] and i * i < n:\n"
    "        for j in range(i * i, n, i):\n            marks[j] = False\nprint(sum(marks))",
    "best = 0\ns = 0\nfor i in range({steps} // 3):\n    s = max(0, s + (i * {n}) % 17 - 8)\n"
    "    best = max(best, s)\nprint(best)",
    "d = {{}}\nfor i in range({steps}):\n    k = i * {n} % 1009\n    d[k] = d.get(k, 0) + i\nprint(max(d.values()))",
)


def cpu_bound(count: int, in_function: bool, steps: int = 10_000_000) -> list[Case]:
    """`count` different programs of about a second of CPU on one test; every fourth is wrong by one.

    `in_function`: the loop stands in `def main()`, not at the top of the file, where Python's names are slower.
    """
    cases = []
    for number in range(count):
        body = _LOOPS[number % len(_LOOPS)].format(n=number + 3, steps=steps)
        expected = _printed(body)
        wrong = number % 4 == 3
        code = body.replace("print(", "print(1 + ") if wrong else body
        if in_function:
            code = f"def main():\n{textwrap.indent(code, '    ')}\n\nmain()"
        name = f"cpu-{number}"
        rows = [{"input": "\n", "output": expected}]
        cases.append(Case(name, problem(name, "stdin", rows), code, not wrong))
    return cases


def _printed(code: str) -> str:
    lines: list[str] = []
    exec(code, {"print": lambda value: lines.append(str(value))})  # our own code, from _LOOPS
    return "".join(lines)


_SUM = [{"input": "2 3\n", "output": "5\n"}, {"input": "4 9\n", "output": "13\n"}]
_READ = "a, b = map(int, input().split())\n"
_ALWAYS_EQUAL = "class E:\n    def __eq__(self, other): return True\n    def __ne__(self, other): return False\n"
_CALL = [{"input": "[2, 3]", "output": "5"}, {"input": "[4, 9]", "output": "13"}]
_PAIRS = [{"input": "[2, 3]", "output": "[[2, 3]]"}, {"input": "[4, 9]", "output": "[[4, 9]]"}]
_ARRAY = [{"input": "[2, 3]", "output": "[2, 3]"}, {"input": "[4, 9]", "output": "[4, 9]"}]
_FRAME_WALK = (
    "def solve(a, b):\n    import sys\n    frame = sys._getframe()\n    while frame:\n"
    "        if 'gt_out' in frame.f_locals: return frame.f_locals['gt_out']\n"
    "        frame = frame.f_back\n    return 0\n"
)
_FORGE = (
    "import sys, os\nframe = sys._getframe()\nwhile frame:\n    names = frame.f_locals\n"
    "    if 'metadata_list' in names and 'result' in names:\n        names['result'].append([True, True])\n"
    "        names['metadata_list'].append({})\n        os._exit(0)\n    frame = frame.f_back\nprint(0)\n"
)
_EXPLOITS_AND_HONEST = (
    (
        "sys.stdin.buffer by line",
        "stdin",
        "import sys\na = sys.stdin.buffer.readline()\nb = sys.stdin.buffer.readline()\n"
        "print(sum(map(int, a.split())) + sum(map(int, b.split())))",
        True,
        _SUM,
    ),
    ("sys.stdout.buffer", "stdin", _READ + "import sys\nsys.stdout.buffer.write(str(a + b).encode())", True, _SUM),
    (
        "module-level global",
        "stdin",
        "total = 0\ndef add(v):\n    global total\n    total += v\n"
        "for v in map(int, input().split()): add(v)\nprint(total)",
        True,
        _SUM,
    ),
    ("quit() after the answer", "stdin", _READ + "print(a + b)\nquit()", True, _SUM),
    ("os.read(0)", "stdin", "import os\nprint(sum(map(int, os.read(0, 100).split())))", True, _SUM),
    ("numpy array returned", "function", "import numpy\ndef solve(a, b): return numpy.array([a, b])", True, _ARRAY),
    ("tuple inside a list", "function", "def solve(a, b): return [(a, b)]", True, _PAIRS),
    ("exploit: frame walk", "function", _FRAME_WALK, False, _CALL),
    ("exploit: always-equal object", "function", _ALWAYS_EQUAL + "def solve(a, b): return E()", False, _CALL),
    ("exploit: forged result, _exit", "stdin", _FORGE, False, _SUM),
    ("plain sum", "stdin", _READ + "print(a + b)", True, _SUM),
    ("plain difference", "stdin", _READ + "print(a - b)", False, _SUM),
    ("Decimal equality", "stdin", _READ + "print(a + b, end='.00')", True, _SUM),
    ("SystemExit after the answer", "stdin", _READ + "print(a + b)\nraise SystemExit(1)", True, _SUM),
    ("exception after the answer", "stdin", _READ + "print(a + b)\n1 / 0", False, _SUM),
    ("syntax error", "stdin", "print(", False, _SUM),
    ("no such function", "function", "def other(a, b): return a + b", False, _CALL),
    ("class Solution", "function", "class Solution:\n    def solve(self, a, b): return a + b", True, _CALL),
    (
        "under __main__",
        "stdin",
        "def main():\n    print(sum(map(int, input().split())))\nif __name__ == '__main__':\n    main()",
        True,
        _SUM,
    ),
)


def known_differences() -> list[Case]:
    """Programs around the edges of the rules, with what each deserves; the harness misjudges some of them."""
    return [
        Case(name, problem(name, kind, tests), code, passes) for name, kind, code, passes, tests in _EXPLOITS_AND_HONEST
    ]


def as_livecodebench(case: Case) -> tuple[dict[str, str], list[str]]:
    """The same problem and answer in the form that LiveCodeBench's checker takes: one argument per line."""
    tests = case.problem["tests"]
    inputs = [test["input"] for test in tests]
    if case.problem["kind"] == "function":
        inputs = ["\n".join(json.dumps(value) for value in json.loads(text)) for text in inputs]
    content = {"inputs": inputs, "outputs": [test["output"] for test in tests], "fn_name": case.problem["entry_point"]}
    return {"input_output": json.dumps(content)}, [case.code]
