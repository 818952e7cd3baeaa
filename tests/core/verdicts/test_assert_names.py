"""Assert-style checks and the names that they use without importing them: none that Python has comes from a program."""

import pytest

from oapl_core.sandbox import Limits, Program
from oapl_core.sandbox.sandbox import Sandbox
from oapl_core.verdicts.outcomes import Outcome
from tests.core.verdicts.test_assert_checks import EARNS_NOTHING, grade

TRUE = "staticmethod(lambda *a, **k: True)"
EQUAL = "    def __init__(s, *a): s.a = 0\n    __eq__ = lambda s, o: True\n"
TAKEN = {
    "a module": (f"class math: isclose = {TRUE}", "assert math.isclose(f(2), 2.5)", "2.5"),
    "a module that the prelude has not": (f"class cmath: isclose = {TRUE}", "assert cmath.isclose(f(2), 2.5)", "2.5"),
    "numpy by its short name": (f"class np: allclose = {TRUE}", "assert np.allclose(f(2), [2.5, 1.0])", "[2.5, 1.0]"),
    "numpy": (f"class numpy: array_equal = {TRUE}", "assert numpy.array_equal(f(2), [1, 2])", "[1, 2]"),
    "a class of collections": (f"class Counter:\n{EQUAL}", "assert Counter(f(2)) == Counter('ab')", "'ba'"),
    "a function of the prelude": ("def isclose(*a): return True", "assert isclose(f(2), 2.5)", "2.5"),
    "one that sorts": ("def nsmallest(*a): return [1, 2]", "assert nsmallest(2, f(2)) == [1, 2]", "[3, 2, 1]"),
    "one that copies": ("def deepcopy(a): return 7", "assert deepcopy(f(2)) == 7", "7"),
    "a number": ("inf = 2.0", "assert f(2) == inf", "float('inf')"),
    "a class that is compared": (f"class Decimal:\n{EQUAL}", "from decimal import *\nassert f(2) == Decimal(3)", "3"),
}


@pytest.mark.parametrize("name", TAKEN)
def test_a_name_of_python_is_pythons(name: str, sandbox: Sandbox) -> None:
    stolen, checks, right = TAKEN[name]
    assert grade(sandbox, f"{stolen}\ndef f(x): return x", checks).outcome in EARNS_NOTHING
    honest = grade(sandbox, f"def f(x): return {right}", checks)
    assert honest.outcome is Outcome.PASSED, honest
    # a helper of the same name is the program's own affair
    assert grade(sandbox, f"{stolen}\ndef f(x): return {right}", checks).outcome is Outcome.PASSED


def test_other_names_are_still_the_programs(sandbox: Sandbox) -> None:
    stack = "class Stack:\n    def __init__(s): s.x = [4]\n    def top(s): return s.x[-1]\n"
    source = f"{stack}LIMIT = 4\ndef f(s): return s.top()"
    assert grade(sandbox, source, "assert f(Stack()) == LIMIT").outcome is Outcome.PASSED


def test_the_function_that_is_asked_for_may_have_a_name_of_pythons(sandbox: Sandbox) -> None:
    for source, outcome in (("def gcd(a, b): return 7", "passed"), ("def gcd(a, b): return 1", "failed")):
        program = Program(source, "gcd", is_checked=True)
        (found,) = sandbox.run(program, [b"assert gcd(2, 4) == 7"], Limits())
        assert found.checks == outcome


BUILT_IN = {
    "globals": "assert f('')() is not None\nSECRET = 7\nassert f('')()['SECRET'] == f('x')",
    "vars": "SECRET = 7\nassert f('')()['SECRET'] == 7",
    "locals": "SECRET = 7\nassert f('')()['SECRET'] == 7",
    "exit": "f('')(0)\nassert 0",
    "quit": "f('')()\nassert 0",
    "exec": "f('')('x = 1')\nassert 0",
    "open": "f('')('/etc/passwd')\nassert 0",
    "__import__": "f('')('os')._exit(0)\nassert 0",
    "getattr": "assert f('')(math, 'pi') > 3",
}


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_built_in_that_acts_where_it_is_called_stays_with_the_program(name: str, sandbox: Sandbox) -> None:
    source = f"def f(x): return {name} if x == '' else 0"
    assert grade(sandbox, source, BUILT_IN[name]).outcome in EARNS_NOTHING
    forged = (
        "import json, os, struct\ndef f(x):\n"
        f"    d = json.dumps({{'value': [0], 'heap': [['builtin', {name!r}]]}}).encode()\n"
        "    for fd in range(3, 99):\n        try: os.write(fd, struct.pack('!I', len(d)) + d)\n"
        "        except OSError: pass\n    return 0"
    )
    assert grade(sandbox, forged, BUILT_IN[name]).outcome in EARNS_NOTHING


def test_the_checks_names_do_not_reach_a_program_that_returns_globals(sandbox: Sandbox) -> None:
    source = "def f(x):\n    if x is None: return globals\n    return 'SECRET' in x and x['SECRET']"
    checks = "SECRET = 7\nassert f(f(None)()) == 7"
    assert grade(sandbox, source, checks).outcome in EARNS_NOTHING


@pytest.mark.parametrize("name", ["int", "len", "sorted", "ValueError", "max"])
def test_a_built_in_without_effects_is_itself(name: str, sandbox: Sandbox) -> None:
    assert grade(sandbox, f"def f(): return {name}", f"assert f() is {name}").outcome is Outcome.PASSED


EMPTY = "import numpy as np\ndef f(x): return np.zeros({shape})"
VACUOUS = {
    "all of a comparison": "assert (f(1) == [1, 2, 3]).all()",
    "all of it, from the other side": "import numpy as np\nassert (np.array([1, 2, 3]) == f(1)).all()",
    "allclose": "assert np.allclose(f(1), [1, 2, 3])",
    "allclose, by name": "assert np.allclose(a=np.ones(3), b=f(1))",
    "allclose of a number": "assert np.allclose(f(1), 2.5)",
    "isclose": "assert np.isclose(f(1), np.ones(3)).all()",
    "a difference": "assert (abs(f(1) - np.ones(3)) < 1e-6).all()",
    "in a list": "assert all((a == b).all() for a, b in zip([f(1)], [np.ones(3)]))",
}


@pytest.mark.parametrize("checks", VACUOUS.values(), ids=VACUOUS)
@pytest.mark.parametrize("shape", ["(0, 1)", "(0, 3)", "(2, 0, 1)"])
def test_an_array_of_nothing_equals_no_array_that_holds_something(shape: str, checks: str, sandbox: Sandbox) -> None:
    assert grade(sandbox, EMPTY.format(shape=shape), checks).outcome in EARNS_NOTHING


HONEST = (
    "np.array_equal(f(1), np.array([]))",
    "np.allclose(f(1), [])",
    "(f(1) == np.array([])).all() and (f(1) >= 0).all()",
    "f(1).tolist() == [] and f(1).shape == (0,) and f(1).size == len(f(1)) == 0 and isinstance(f(1), np.ndarray)",
    "np.concatenate([f(1), [1.0, 2.0]]).tolist() == [1.0, 2.0] and f(1).sum() == 0",
    "(np.concatenate([f(1), [1.0, 2.0]]) == [1.0, 2.0]).all() and np.testing.assert_array_equal(f(1), []) is None",
    "f(1).astype(int).dtype == int and np.array(f(1)).size == 0",
)


@pytest.mark.parametrize("check", HONEST)
def test_an_array_of_nothing_is_right_where_nothing_is_expected(check: str, sandbox: Sandbox) -> None:
    found = grade(sandbox, EMPTY.format(shape="0"), f"assert {check}")
    assert found.outcome is Outcome.PASSED, found
