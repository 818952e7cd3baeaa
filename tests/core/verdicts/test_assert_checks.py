"""Assert-style problems: only a program whose checks ran to their end passes, and the usual tricks earn nothing."""

from typing import Any

import pytest

from oapl_core.sandbox import Limits, Program
from oapl_core.sandbox.sandbox import Sandbox
from oapl_core.settings.verifier import VerifierConfig
from oapl_core.verdicts.outcomes import Outcome
from oapl_core.verdicts.programs import ProgramGrade, grade_program
from oapl_core.verdicts.rules import Rules

LIMITS = Limits(cpu_s=1, wall_s=3)
CHECK = (
    "def check(candidate):\n    assert candidate([3, 1]) == [1, 3]\n    assert abs(len(candidate([2])) - 1) < 1e-6\n"
    "    assert candidate([]) == []\n\ncheck(f)\n"
)
PROBLEM: dict[str, Any] = {"kind": "assert", "entry_point": "f", "tests": [{"input": CHECK, "output": ""}]}


def grade(sandbox: Sandbox, source: str, *tests: str) -> ProgramGrade:
    rows = [{"input": test, "output": ""} for test in tests or (CHECK,)]
    return grade_program(sandbox, source, rows, LIMITS, Rules.of(PROBLEM, VerifierConfig()))


_WRONG = "def f(a): return 0\n"
_EQUAL = "\n    def __eq__(s, o): return True\n    def __len__(s): return 1\n    __hash__ = None\n"
_FORGE = (
    "import os, struct\n"
    "def forge():\n"
    "    done = struct.pack('<BiIQQ80s', 2, 0, 0, 2**40, 2**40, b'')\n"
    "    for fd in range(1, 300):\n"
    "        for data in (b'PASSED OK 1.0', b'x' * 16, done):\n"
    "            try: os.write(fd, data)\n"
    "            except OSError: pass\n"
    "    os._exit(0)\n"
)
EXPLOITS = {
    "wrong": _WRONG,
    "no function": "g = 1",
    "sys.exit at once": "import sys\nsys.exit(0)",
    "sys.exit when called": "import sys\ndef f(a): sys.exit(0)",
    "os._exit at once": "import os\nos._exit(0)",
    "os._exit when called": "import os\ndef f(a): os._exit(0)",
    "quits in an exit handler": "import atexit, os\natexit.register(os._exit, 0)\n" + _WRONG,
    "own check": _WRONG + "def check(candidate): pass",
    "check as a built-in": "import builtins\nbuiltins.check = lambda c: None\n" + _WRONG,
    "another AssertionError": "import builtins\nclass E(BaseException): pass\nbuiltins.AssertionError = E\n" + _WRONG,
    "patched built-ins": "import builtins\nbuiltins.abs = builtins.len = lambda x: 0\ndef f(a): return sorted(a) or 0",
    "patched exec": "import builtins\nbuiltins.exec = builtins.compile = lambda *a, **k: None\n" + _WRONG,
    "equal to everything": "class A:" + _EQUAL + "def f(a): return A()",
    "a list equal to everything": "class A(list):" + _EQUAL + "def f(a): return A([9])",
    "elements equal to everything": "class A(int):" + _EQUAL + "def f(a): return [A(7) for _ in a]",
    "a deque of such": "import collections\nclass A:" + _EQUAL + "def f(a): return collections.deque([A()])",
    "a metaclass that lies": (
        "class M(type):\n    __flags__ = 0\n    __module__ = 'builtins'\n"
        "class A(metaclass=M):" + _EQUAL + "def f(a): return A()"
    ),
    "not a function but a callable": "class A:" + _EQUAL + "class F:\n    def __call__(s, a): return A()\nf = F()",
    "a class as the function": "class f:" + _EQUAL + "    def __init__(s, a): pass",
    "a method of Solution": "class A:" + _EQUAL + "class Solution:\n    def f(self, a): return A()",
    "tracing that skips lines": (
        "import sys\ndef tracer(frame, event, arg):\n"
        "    if event == 'line' and frame.f_code.co_name == 'check': frame.f_lineno = frame.f_code.co_firstlineno + 3\n"
        "    return tracer\ntry: sys.settrace(tracer)\nexcept PermissionError: pass\n"
        "def f(a):\n    g = sys._getframe(2)\n    g.f_trace = tracer\n    sys.settrace(tracer)\n    return 0"
    ),
    "forged marks at once": _FORGE + "forge()",
    "forged marks when called": _FORGE + "def f(a): forge()",
    "searches frames and memory for the secret": (
        "import os, sys, gc\ndef f(a):\n    found, g = [], sys._getframe()\n    while g:\n"
        "        found += [v for v in [*g.f_locals.values(), *g.f_globals.values()] if isinstance(v, bytes)]\n"
        "        g = g.f_back\n"
        "    for look in (gc.get_objects, lambda: gc.get_referents(sys._getframe(2))):\n"
        "        try: found += [v for v in look() if isinstance(v, bytes)]\n        except PermissionError: pass\n"
        "    for fd in range(3, 40):\n"
        "        for v in found:\n"
        "            if len(v) == 16:\n"
        "                try: os.write(fd, v)\n                except OSError: pass\n"
        "        try: os.write(fd, os.read(fd, 16))\n        except OSError: pass\n"
        "    os._exit(0)"
    ),
    "reads memory": "import ctypes\ndef f(a): return ctypes.string_at(id(a), 8)",
    "changes a function of the verifier": (
        "import sys\ndef f(a):\n    g = sys._getframe(1)\n"
        "    g.f_globals['plain'].__code__ = (lambda v: v).__code__\n    return 0"
    ),
    "reads the checks as input": "print(open(0).read())\nassert not open(0).read()\n" + _WRONG,
}  # fmt: skip


EARNS_NOTHING = (Outcome.WRONG_ANSWER, Outcome.RUNTIME_ERROR, Outcome.NOT_JUDGEABLE, Outcome.TIME_LIMIT)


@pytest.mark.parametrize("name", EXPLOITS)
def test_an_exploit_does_not_pass(name: str, sandbox: Sandbox) -> None:
    found = grade(sandbox, EXPLOITS[name])
    assert found.outcome in EARNS_NOTHING, found
    assert found.outcome.reward == 0.0


HONEST = {
    "plain": "def f(a): return sorted(a)",
    "recursive": "def f(a): return a if len(a) < 2 else [min(a)] + f([x for x in a if x != min(a)])",
    "cached helper": "import functools\n@functools.cache\ndef g(x): return x\ndef f(a): return sorted(g(x) for x in a)",
    "lambda": "f = lambda a: sorted(a)",
    "partial": "import functools\nf = functools.partial(lambda key, a: sorted(a, key=key), None)",
    "numpy array": "import numpy as np\ndef f(a): return np.sort(np.array(a, dtype=int)).tolist()",
    "numpy result": "import numpy as np\ndef f(a): return [np.int64(v) for v in sorted(a)]",
    "subclass of list": "class L(list): pass\ndef f(a): return L(sorted(a))",
    "method of Solution": "class Solution:\n    def f(self, a: List[int]) -> List[int]: return sorted(a)",
    "prints as well": "def f(a):\n    print('debug')\n    return sorted(a)",
    "main guard with input": (
        "def f(a): return sorted(a)\nif __name__ == '__main__':\n    try: print(f([int(input())]))\n"
        "    except EOFError: pass"
    ),
    "exception in use": "def f(a):\n    try: return sorted(a)\n    finally: pass",
    "named tuple inside": "import collections\nP = collections.namedtuple('P', 'x')\n"
    "def f(a): return [p.x for p in sorted(map(P, a))]",
}  # fmt: skip


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_program_passes(name: str, sandbox: Sandbox) -> None:
    assert grade(sandbox, HONEST[name]).outcome is Outcome.PASSED


VALUES = {
    "tuple": ("(1, (2, 3))", "== (1, (2, 3))"),
    "set": ("{1, 2}", "== {2, 1}"),
    "None": ("None", "is None"),
    "bool": ("1 > 0", "is True"),
    "Counter": ("__import__('collections').Counter('aab')", "== {'a': 2, 'b': 1}"),
    "Decimal": ("__import__('decimal').Decimal('1.5')", "== 1.5"),
    "date": ("__import__('datetime').date(2020, 1, 2)", "== __import__('datetime').date(2020, 1, 2)"),
    "negative float": ("-1.5", "== -1.5"),
    "text of a subclass": ("type('S', (str,), {})('ab')", "== 'ab'"),
    "generator": ("(i for i in (1, 2))", ".__next__() == 1"),
    "dict": ("{'a': [1, (2,)]}", "== {'a': [1, (2,)]}"),
    "function": ("lambda x: [x]", "(3) == [3]"),
}


@pytest.mark.parametrize("name", VALUES)
def test_values_reach_the_checks_as_they_are(name: str, sandbox: Sandbox) -> None:
    value, check = VALUES[name]
    found = grade(sandbox, f"def f(): return {value}", f"assert f(){check}")
    assert found.outcome is Outcome.PASSED, found


def test_every_failing_kind_is_named(sandbox: Sandbox) -> None:
    sources = {
        _WRONG: Outcome.WRONG_ANSWER,
        "def f(a): return 1 / 0": Outcome.RUNTIME_ERROR,
        "def f(a):": Outcome.COMPILE_ERROR,
        "def f(a):\n    while 1: pass": Outcome.TIME_LIMIT,
        "def f(a): return [0] * 10**10": Outcome.MEMORY_LIMIT,
    }
    assert {source: grade(sandbox, source).outcome for source in sources} == sources


def test_each_list_of_checks_runs_in_a_child_of_its_own(sandbox: Sandbox) -> None:
    source = "import math\nmath.n = getattr(math, 'n', 0) + 1\ndef f(): return math.n"
    tests = ["assert f() == 1", "assert f() == 1", "assert f() == 2"]
    found = grade(sandbox, source, *tests)
    assert (found.outcome, found.tests_passed, found.first_failing_test) == (Outcome.WRONG_ANSWER, 2, 2)
    assert "line 1" in str(found.excerpt)


def test_a_built_in_does_not_answer_for_a_program_without_the_function(sandbox: Sandbox) -> None:
    for name, check in (("add", "assert add(1, 2) == 3"), ("sum", "assert sum([1, 2]) == 3")):
        program = Program("x = 1", name, is_checked=True)
        assert sandbox.run(program, [check.encode()], LIMITS)[0].raised == "NameError"
    called = Program("x = 1", "add")
    assert sandbox.run(called, [b"[1, 2]"], LIMITS)[0].raised == "NameError"


def test_the_word_of_the_checks_is_a_fact_about_one_execution(sandbox: Sandbox) -> None:
    right, wrong = (Program(f"def f(): return {n}", "f", is_checked=True) for n in (1, 2))
    checks = [b"assert f() == 1"]
    assert [sandbox.run(program, checks, LIMITS)[0].checks for program in (right, wrong)] == ["passed", "failed"]
    assert sandbox.run(Program("print(1)"), [b""], LIMITS)[0].checks == ""
