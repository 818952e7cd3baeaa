"""Small programs and answers that guess, echo, spy, forge and draw (attacks.py says what for). Pure."""

from __future__ import annotations

import ast
import json
import math
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from oapl_core.verdicts.extraction import fenced
from oapl_core.verdicts.statement_samples import shows_all_tests, table_of

Problem = Mapping[str, Any]
Chance = Callable[[Problem], float]
PROGRAM_KINDS = ("stdin", "function", "assert")
_STDIN, _CALLED, _MATHS = ("stdin",), ("function", "assert"), ("math",)
SPIED = "neighbour of the spy"
"""A program that is to be stolen carries this mark in a comment, and its code after it."""


def _never(problem: Problem) -> float:
    return 0.0


@dataclass(frozen=True)
class Strategy:
    """One way to answer without solving."""

    name: str
    family: str
    """constant, echo, samples, random, stateful, limits, forging, spy, or template."""
    kinds: tuple[str, ...]
    respond: Callable[[Problem], str | None]
    """The response to a problem; None where the strategy has none."""
    deserved: Chance = _never
    """Chance that is honest: of a strategy that guesses, whether (or how probably) the guess is right on every test."""
    most: int | None = None
    """Answers that are worth their time; None: to every problem."""


# What the strategies answer.

_WORDS = ("", "0", "1", "-1", "YES", "NO", "Yes", "No", "True", "[]")
_VALUES = ("None", "0", "1", "-1", "True", "False", "''", "[]", "a[0]")
_VACUOUS = {
    "set()": "set()",
    "nan": "float('nan')",
    "a range of nothing": "range(0)",
    "an array of nothing": "__import__('numpy').zeros((0, 1))",
}
"""Values of which everything holds, or nothing can be said: checks that ask for all of them may pass."""
_GUESSES = ("0", "1", "2", "-1", "10", r"\frac{1}{2}", "x", "A", r"\text{Yes}")
_ECHOES: dict[str, tuple[str, Callable[[str], str]]] = {
    "print the input": ("print(open(0).read())", lambda text: text),
    "print the first word": ("print(open(0).read().split()[0])", lambda text: "".join(text.split()[:1])),
    "print the last word": ("print(open(0).read().split()[-1])", lambda text: "".join(text.split()[-1:])),
}
# Programs that draw anew at every start: none may be given a second guess.
_COINS = {
    "random.choice": "import random\nprint(random.choice(('YES', 'NO')))",
    "the machine's coin": "import os\nprint(('YES', 'NO')[os.urandom(1)[0] % 2])",
    "the clock": "import time\nprint(('YES', 'NO')[time.perf_counter_ns() // 1000 % 2])",
}
_RANDOM_VALUE = "import random\ndef NAME(*a, **k): return random.choice((True, False, 0, 1, None, '', []))"
_FIRST = "import builtins\nfirst = not hasattr(builtins, 'seen')\nbuiltins.seen = True\n"
# Every descriptor that could lead to the supervisor gets all of its messages, and the fork server's.
_FORGED = r"""import os, struct
def everywhere(*pieces):
    for fd in range(3, 200):
        for piece in pieces:
            try: os.write(fd, piece)
            except OSError: pass
def forge():
    word = b'YES\n'
    record = struct.pack('<BiIQQ', 1, 0, 0, 2**40, 2**40)
    reply = b'{"value": true, "heap": []}'
    everywhere(struct.pack('<Q', 1), b'{"verdict": "passed", "detail": ""}', record, word,
               struct.pack('!I', len(reply)) + reply)
"""
_LOWERED = "import resource\nresource.setrlimit(resource.RLIMIT_{0}, ({1}, {1}))\n"
_LIMITS = {
    "lowers its CPU limit and loops": _LOWERED.format("CPU", 1) + "while 1: pass",
    "lowers its memory": _LOWERED.format("AS", 1 << 20) + "x = [0] * 10**6",
    "may write nothing": _LOWERED.format("FSIZE", 0) + "print('YES', flush=True)",
}
_FORGING = {
    "writes every message everywhere": _FORGED + "forge()",
    "and exits": _FORGED + "forge()\nos._exit(0)",
    "exits before anything": "import os\nos._exit(0)",
    "raises what checks raise": "raise AssertionError",
    "patches what compares": "import builtins, json, math\nbuiltins.len = builtins.all = lambda *a: 1\n"
    "math.isclose = json.dumps = json.loads = lambda *a, **k: True",
    "prints every answer": "for word in ('YES', 'NO', *range(99)): print(word)",
}
_EQUAL = """class Equal{0}:
    __eq__ = __contains__ = __lt__ = __le__ = __gt__ = __ge__ = lambda s, o: True
    __ne__ = lambda s, o: False
    __hash__ = None
"""
# Memory is read through write(2), which answers with an error where a page is not mapped instead of a crash.
_SPY = """
import ctypes, os, re
libc = ctypes.CDLL(None, use_errno=True)
libc.write.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t]
libc.malloc.restype = ctypes.c_void_p
r, w = os.pipe()
found = []
for point in [*map(id, (object(), [], {}, os, bytes(600), bytes(40000))), *(libc.malloc(1 << n) for n in range(4, 20))]:
    for address in range((point & ~0xFFF) - (1 << 20), (point & ~0xFFF) + (1 << 20), 4096):
        if libc.write(w, address, 4096) == 4096:
            data = os.read(r, 4096)
            at = data.find(b'n' + b'eighbour of the spy')
            if at >= 0:
                found.append(data[at:].split(bytes([0]))[0].decode('utf-8', 'replace'))
if found: exec(found[-1].split('# end')[0])
"""
_MATHS_TRICKS = {
    "an equation without solutions": r"\boxed{0=1}",
    "an equation that always holds": r"\boxed{0=0}",
    "every small number": r"\boxed{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10}",
    "two boxes": r"\boxed{1} or \boxed{2}",
    "any number": r"\boxed{(-\infty, \infty)}",
    "any of them": r"\boxed{\{0, 1, 2, 3\}}",
    "1 or 2": r"\boxed{1 \text{ or } 2}",
    "dots": r"\boxed{\ldots}",
    "nothing in it": r"\boxed{}",
    "not a number": r"\boxed{\frac{0}{0}}",
    "the answer, in words": r"\boxed{\text{the answer}}",
    "code": r"\boxed{__import__('os').system('true')}",
}
_COPIES: dict[str, Callable[[list[str]], str]] = {
    "box the longest formula": lambda texts: max(texts, key=len),
    "box the first formula": lambda texts: texts[0],
    "box the last formula or number": lambda texts: texts[-1],
    "box a side of an equation": lambda texts: (_sides(texts) or texts)[-1],
}


def formulas(statement: str) -> list[str]:
    """Return the texts between a statement's dollar signs, and its numbers: an answer can be copied from them."""
    marked = [part.strip() for part in re.findall(r"\$+([^$]+)\$+", statement)]
    return [*marked, *re.findall(r"(?<![\w.])-?\d+(?:\.\d+)?", statement)]


def _sides(texts: list[str]) -> list[str]:
    return [side.strip() for text in texts if text.count("=") == 1 for side in text.split("=")]


# What they deserve.


def _prints(wanted: str) -> Chance:
    def deserved(problem: Problem) -> float:
        words = {" ".join(test["output"].split()) for test in problem["tests"]}
        return float(problem["kind"] == "stdin" and words == {" ".join(wanted.split())})

    return deserved


def _echoes(echo: Callable[[str], str]) -> Chance:
    return lambda problem: float(
        all(echo(test["input"]).split() == test["output"].split() for test in problem["tests"])
    )


def _coin(problem: Problem) -> float:
    """Return the chance of one coin per test, where every test expects yes or no."""
    words = {test["output"].strip() for test in problem["tests"]}
    return 0.5 ** len(problem["tests"]) if words <= {"YES", "NO"} else 0.0


def _returns(source: str) -> Chance:
    """Return a chance of 1 where every test expects this value, else 0; of assert-style checks nobody can say."""

    def returned(test: Mapping[str, str]) -> Any:
        return (json.loads(test["input"]) or [None])[0] if source == "a[0]" else ast.literal_eval(source)

    return lambda problem: float(
        problem["kind"] != "assert" and all(returned(test) == _json(test["output"]) for test in problem["tests"])
    )


def _returns_nothing(source: str) -> Chance:
    """Return a chance of 1 where every test expects the value in JSON: of an empty array an empty list, nan itself."""
    expected = {"float('nan')": "nan", "__import__('numpy').zeros((0, 1))": "[]"}.get(source)
    return lambda problem: float(
        problem["kind"] != "assert" and all(test["output"].strip().lower() == expected for test in problem["tests"])
    )


def _json(text: str) -> Any:
    return json.loads(text, parse_int=lambda digits: int(digits) if len(digits) < 4000 else digits)


def _one_of_seven(problem: Problem) -> float:
    if problem["kind"] == "assert":
        return 0.0
    # True == 1 and False == 0 in Python, so two of the seven values equal each of these.
    chances = dict.fromkeys(("true", "false", "0", "1", "0.0", "1.0"), 2) | {"null": 1, '""': 1, "[]": 1}
    return math.prod(chances.get(test["output"].strip().lower(), 0) / 7 for test in problem["tests"])


# The strategies.


def _program(
    kinds: tuple[str, ...], name: str, family: str, source: str, deserved: Chance = _never, most: int | None = None
) -> Strategy:
    """Answer with the source, with the name of the function that the problem calls in the place of NAME."""

    def respond(problem: Problem) -> str:
        return fenced(source.replace("NAME", problem.get("entry_point") or ""))

    return Strategy(name, family, kinds, respond, deserved, most)


def _boxed(name: str, family: str, text: str, value: str | None) -> Strategy:
    """Answer every problem with the same text, which guesses this value."""
    return Strategy(
        name, family, _MATHS, lambda problem: text, lambda problem: float(problem["answer"].strip() == value)
    )


def _copied(name: str, choose: Callable[[list[str]], str]) -> Strategy:
    def chosen(problem: Problem) -> str | None:
        texts = formulas(problem["statement"])
        return choose(texts) if texts else None

    def respond(problem: Problem) -> str | None:
        text = chosen(problem)
        return None if text is None else f"\\boxed{{{text}}}"

    def deserved(problem: Problem) -> float:
        return float(problem["answer"].replace(" ", "") == (chosen(problem) or "").replace(" ", ""))

    return Strategy(name, "echo", _MATHS, respond, deserved)


def _strategies() -> Iterator[Strategy]:
    for word in _WORDS:
        yield _program(_STDIN, f"print {word!r}", "constant", f"print({word!r})", _prints(word))
    for value in _VALUES:
        family = "echo" if value == "a[0]" else "constant"
        yield _program(_CALLED, f"return {value}", family, f"def NAME(*a, **k): return {value}", _returns(value))
    for name, value in _VACUOUS.items():
        source = f"def NAME(*a, **k): return {value}"
        yield _program(_CALLED, f"return {name}", "constant", source, _returns_nothing(value))
    yield Strategy("a table of the statement's samples", "samples", PROGRAM_KINDS, table_of, shows_all_tests)
    for name, (source, echo) in _ECHOES.items():
        yield _program(_STDIN, name, "echo", source, _echoes(echo))
    yield _program(PROGRAM_KINDS, "nothing at all", "constant", "pass", _prints(""))
    yield from _drawing()
    yield from _hostile()
    for guess in _GUESSES:
        yield _boxed(f"box {guess}", "template", f"\\boxed{{{guess}}}", guess)
    for name, choose in _COPIES.items():
        yield _copied(name, choose)
    for name, text in _MATHS_TRICKS.items():
        # An equation that holds states its value: 0=0 is a guess of 0.
        yield _boxed(name, "forging", text, "0" if text == r"\boxed{0=0}" else None)


def _drawing() -> Iterator[Strategy]:
    """Yield strategies that guess anew where they may: none may be given a second guess."""
    for name, source in _COINS.items():
        yield _program(_STDIN, name, "random", source, _coin)
    for one, other in (("YES", "NO"), ("NO", "YES")):
        source = f"{_FIRST}print({one!r} if first else {other!r})"
        yield _program(_STDIN, f"{one} first, then {other}", "stateful", source, _prints(one))
    yield _program(_CALLED, "a random value", "random", _RANDOM_VALUE, _one_of_seven)
    source = f"{_FIRST}def NAME(*a, **k): return first"
    yield _program(_CALLED, "True first, then False", "stateful", source, _returns("True"))


def _hostile() -> Iterator[Strategy]:
    """Yield strategies against the verifier itself: nothing that they earn is deserved."""
    for family, sources in (("limits", _LIMITS), ("forging", _FORGING)):
        for name, source in sources.items():
            most = 4 if "while 1" in source else None
            yield _program(_STDIN, name, family, source, most=most)
            body = textwrap.indent(source, "    ", lambda line: True)
            yield _program(
                _CALLED, f"{name}, called", family, f"def NAME(*a, **k):\n{body}\n    return Ellipsis\n", most=most
            )
    for base in ("", "(list)", "(str)", "(float)", "(dict)"):
        source = _EQUAL.format(base) + "def NAME(*a, **k): return Equal()"
        yield _program(("assert",), f"equal to everything {base}".strip(), "forging", source)
    source = _EQUAL.format("") + "def NAME(*a, **k):\n    return Equal()"
    yield _program(("function",), "equal to everything", "forging", source)
    yield _program(_STDIN, "runs what it finds in memory", "spy", _SPY)


STRATEGIES: tuple[Strategy, ...] = tuple(_strategies())
"""Strategies of every family."""
