"""Programs whose names are made local behave as before, and the others are left as they are."""

import contextlib
import io
from types import CodeType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oapl_core.sandbox.checks.fast_names import as_function
from oapl_core.sandbox.prelude import Prelude

PRELUDE = Prelude().names

SAME = {
    "a loop": "x = 1\nfor i in range(5):\n    x = x * 3 + i\nprint(x, i)",
    "imports first": (
        "import sys, math as m\n"
        "from collections import deque\n"
        "d = deque()\n"
        "for i in range(3):\n"
        "    d.append(m.sqrt(i))\n"
        "print(d, sys.argv is not None)"
    ),
    "another input": "import sys\ninput = lines = ['1', '2'].pop\n",
    "a new meaning of a built-in": (
        "import io\n"
        "input = io.StringIO('3\\n4\\n').readline\n"
        "s = 0\n"
        "for _ in range(2):\n"
        "    s += int(input())\n"
        "print(s)"
    ),
    "comprehensions": (
        "n = 4\n"
        "for k in range(2):\n"
        "    print([i * n for i in range(k)], {k: n}, sum(i + n for i in range(3)))\n"
        "print([(n := n + 1) for _ in range(2)], n)"
    ),
    "except": (
        "for i in range(3):\n"
        "    try:\n"
        "        print(1 // i)\n"
        "    except ZeroDivisionError as problem:\n"
        "        print(problem)"
    ),
    "match": (
        "for p in [(1, 2), {'a': 1}, [3]]:\n"
        "    match p:\n"
        "        case (u, v):\n"
        "            print(u, v)\n"
        "        case {'a': w, **more}:\n"
        "            print(w, more)\n"
        "        case [q, *others]:\n"
        "            print(q, others)"
    ),
    "main": "if __name__ == '__main__':\n    print(1)\nfor i in range(2):\n    print(i)",
    "exit": "for i in range(3):\n    print(i)\n    if i == 1:\n        raise SystemExit(3)",
    "a crash": "for i in range(3):\n    print(i)\nprint([][i])",
    "an unbound name": "for i in range(0):\n    x = 1\nprint(x)",
    "known names": "sum = 0\ncount, index = 1, 2\nfor i in range(3):\n    sum += count * index\nprint(sum)",
    "else": ("while False:\n    pass\nelse:\n    print('else')\nwith open('/dev/null') as f:\n    print(f.read())"),
}

LEFT = {
    "no loop at the top": "x = 1\nprint(x)",
    "a function": "def f():\n    return 1\nfor i in range(2):\n    print(f())",
    "a lambda": "f = lambda: 1\nfor i in range(2):\n    print(f())",
    "globals()": "for i in range(2):\n    print(globals()['i'])",
    "exec": "for i in range(2):\n    exec('print(i)')",
    "a built-in's name used later": "for i in range(2):\n    print(max(1, 2))\nmax = 3",
    "a built-in in its own meaning": "sum = sum([1])\nfor i in range(2):\n    print(sum)",
    "a name bound in a loop only": "for i in range(0):\n    sum = 1\nprint(sum)",
    "a name used, then bound": "print(count)\ncount = 1\nfor i in range(2):\n    print(count)",
    "a prelude name": "for i in range(2):\n    print(gcd(4, 6))\ngcd = 3",
    "a name of the head": "import os as n\nfor i in range(2):\n    n = i",
    "an import below": "for i in range(2):\n    import math",
    "import *": "from math import *\nfor i in range(2):\n    print(i)",
    "an annotation": "x: int = 1\nfor i in range(2):\n    print(x)",
    "frames": "import sys\nfor i in range(2):\n    print(sys._getframe())",
    "its own module": "import __main__\nfor i in range(2):\n    print(__main__.i)",
    "the kind of error": (
        "try:\n    print(x)\nexcept NameError as e:\n    print(type(e))\nfor x in range(2):\n    pass"
    ),
    "del": "for i in range(2):\n    pass\ndel i",
}


def outcome(code: CodeType) -> tuple[str, str]:
    names = {**PRELUDE, "__name__": "__main__"}
    printed, raised = io.StringIO(), ""
    with contextlib.redirect_stdout(printed):
        try:
            exec(code, names)
        except (ArithmeticError, LookupError, NameError, SystemExit, TypeError) as error:
            kind = NameError if isinstance(error, NameError) else type(error)  # UnboundLocalError is one
            raised = kind.__name__
    return printed.getvalue(), raised


@pytest.mark.parametrize("source", SAME.values(), ids=SAME)
def test_a_program_prints_and_raises_what_it_did(source: str) -> None:
    if "\nfor" in source or source.startswith(("for", "while")):
        fast = as_function(source, PRELUDE)
        assert fast is not None, "it was not made faster"
        assert outcome(fast) == outcome(compile(source, "main.py", "exec"))
    else:
        assert as_function(source, PRELUDE) is None


@pytest.mark.parametrize("source", LEFT.values(), ids=LEFT)
def test_a_program_that_could_notice_is_left_alone(source: str) -> None:
    assert as_function(source, PRELUDE) is None


_names = st.sampled_from(["a", "b", "c", "max", "gcd"])
_values = st.one_of(_names, st.integers(0, 3).map(str))
_lines = st.one_of(
    st.tuples(_names, _values).map(" = ".join),
    st.tuples(_names, _values).map(" += ".join),
    _values.map("print({})".format),
    st.tuples(_names, _values).map(lambda p: f"print([{p[0]} for {p[0]} in range(2)], {p[1]})"),
    st.tuples(_names, _values).map(lambda p: f"if {p[1]}:\n    {p[0]} = {p[1]}"),
    st.tuples(_names, _values).map(lambda p: f"for {p[0]} in range(2):\n    print({p[1]})"),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(_lines, max_size=7).map(lambda lines: "\n".join([*lines, "for z in range(1): pass"])))
def test_made_up_programs_do_the_same(source: str) -> None:
    fast = as_function(source, PRELUDE)
    if fast is not None:
        assert outcome(fast) == outcome(compile(source, "main.py", "exec"))


def test_line_numbers_stay_those_of_the_program() -> None:
    source = "import sys\n\nx = 0\nfor i in range(2):\n    x += i\nprint(x[0])"
    fast = as_function(source, PRELUDE)
    assert fast is not None
    with pytest.raises(TypeError) as caught, contextlib.redirect_stdout(io.StringIO()):
        exec(fast, {})
    assert caught.traceback[-1].lineno == 5, "counted from 0"
