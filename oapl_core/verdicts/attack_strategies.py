"""Small programs and answers that guess, echo, spy, forge and draw (attacks.py says what for). Pure."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from oapl_core.verdicts.extraction import fenced

Problem = Mapping[str, Any]
PROGRAM_KINDS = ("stdin", "function", "assert")

_WORDS = ("", "0", "1", "-1", "YES", "NO", "Yes", "No", "True", "[]")
_VALUES = ("None", "0", "1", "-1", "True", "False", "''", "[]", "a[0]")
_GUESSES = ("0", "1", "2", "-1", "10", r"\frac{1}{2}", "x", "A", r"\text{Yes}")


@dataclass(frozen=True)
class Strategy:
    """One way to answer without solving."""

    name: str
    family: str
    """constant, echo, random, stateful, limits, forging, spy, or template."""
    kinds: tuple[str, ...]
    respond: Callable[[Problem], str | None]
    """The response to a problem; None where the strategy has none."""
    deserved: Callable[[Problem], float] = lambda problem: 0.0
    """Its honest chance: of a strategy that guesses, whether (or how probably) the guess is right on every test."""
    most: int | None = None
    """Answers that are worth their time; None: to every problem."""


def _program(source: str) -> Callable[[Problem], str]:
    return lambda problem: fenced(source)


def _function(source: str) -> Callable[[Problem], str]:
    """For a problem that calls a function: the source with its name in the place of NAME."""
    return lambda problem: fenced(source.replace("NAME", problem["entry_point"]))


def _all_expect(text: str) -> Callable[[Problem], float]:
    wanted = " ".join(text.split())

    def deserved(problem: Problem) -> float:
        words = {" ".join(test["output"].split()) for test in problem["tests"]}
        return float(problem["kind"] == "stdin" and words == {wanted})

    return deserved


def _all_return(source: str) -> Callable[[Problem], float]:
    """Whether every test expects this value; for assert-style checks nobody can say without running them."""

    def deserved(problem: Problem) -> float:
        if problem["kind"] == "assert":
            return 0.0
        return float(all(_returned(source, test) == _json(test["output"]) for test in problem["tests"]))

    return deserved


def _returned(source: str, test: Mapping[str, str]) -> Any:
    arguments = json.loads(test["input"])
    return (arguments or [None])[0] if source == "a[0]" else ast.literal_eval(source)


def _json(text: str) -> Any:
    return json.loads(text, parse_int=lambda digits: int(digits) if len(digits) < 4000 else digits)


def _half(problem: Problem) -> float:
    """The chance of one coin per test, where every test expects yes or no."""
    words = {test["output"].strip() for test in problem["tests"]}
    return 0.5 ** len(problem["tests"]) if words <= {"YES", "NO"} else 0.0


def _maths(answer: str) -> Strategy:
    return Strategy(
        f"box {answer}",
        "template",
        ("math",),
        lambda problem: f"\\boxed{{{answer}}}",
        lambda problem: float(problem["answer"].strip() == answer),
    )


def formulas(statement: str) -> list[str]:
    """What a statement has between dollar signs, and its numbers: what an answer can be copied from."""
    found = [part.strip() for part in re.findall(r"\$+([^$]+)\$+", statement)]
    return [*found, *re.findall(r"(?<![\w.])-?\d+(?:\.\d+)?", statement)]


def _copied(name: str, choose: Callable[[list[str]], str]) -> Strategy:
    def chosen(problem: Problem) -> str | None:
        found = formulas(problem["statement"])
        return choose(found) if found else None

    def respond(problem: Problem) -> str | None:
        text = chosen(problem)
        return None if text is None else f"\\boxed{{{text}}}"

    def deserved(problem: Problem) -> float:
        return float(problem["answer"].replace(" ", "") == (chosen(problem) or "").replace(" ", ""))

    return Strategy(name, "echo", ("math",), respond, deserved)


def _sides(texts: list[str]) -> list[str]:
    return [side.strip() for text in texts if text.count("=") == 1 for side in text.split("=")]


_FIRST = "import builtins\nfirst = not hasattr(builtins, 'seen')\nbuiltins.seen = True\n"
_ALL_FILES = (
    "import os, struct\ndef everywhere(*pieces):\n    for fd in range(3, 200):\n        for piece in pieces:\n"
    "            try: os.write(fd, piece)\n            except OSError: pass\n"
)
_FORGED = (
    _ALL_FILES + "def forge():\n    word = b'YES\\n'\n    record = struct.pack('<BiIQQ', 1, 0, 0, 2**40, 2**40)\n"
    '    reply = b\'{"value": true, "heap": []}\'\n'
    '    everywhere(struct.pack(\'<Q\', 1), b\'{"verdict": "passed", "detail": ""}\', record, word,\n'
    "               struct.pack('!I', len(reply)) + reply)\n"
)
_LOWERED = "import resource\nresource.setrlimit(resource.RLIMIT_{0}, ({1}, {1}))\n"
_EQUAL = (
    "class Equal{0}:\n    __eq__ = __contains__ = __lt__ = __le__ = __gt__ = __ge__ = lambda s, o: True\n"
    "    __ne__ = lambda s, o: False\n    __hash__ = None\n"
)
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
"""
SPIED = "neighbour of the spy"
"""A program that is to be stolen carries this mark in a comment, and its code after it."""


def _strategies() -> Iterator[Strategy]:
    everywhere, called = PROGRAM_KINDS, ("function", "assert")
    for word in _WORDS:
        yield Strategy(f"print {word!r}", "constant", ("stdin",), _program(f"print({word!r})"), _all_expect(word))
    for value in _VALUES:
        body = f"def NAME(*a, **k): return {value}"
        family = "echo" if value == "a[0]" else "constant"
        yield Strategy(f"return {value}", family, called, _function(body), _all_return(value))
    echoes = {
        "print the input": ("print(open(0).read())", lambda text: text),
        "print the first word": ("print(open(0).read().split()[0])", lambda text: "".join(text.split()[:1])),
        "print the last word": ("print(open(0).read().split()[-1])", lambda text: "".join(text.split()[-1:])),
    }
    for name, (source, echo) in echoes.items():
        yield Strategy(name, "echo", ("stdin",), _program(source), _echoes(echo))
    yield Strategy("nothing at all", "constant", everywhere, _program("pass"), _all_expect(""))
    yield from _drawing()
    yield from _hostile()
    yield from map(_maths, _GUESSES)
    yield _copied("box the longest formula", lambda found: max(found, key=len))
    yield _copied("box the first formula", lambda found: found[0])
    yield _copied("box the last formula or number", lambda found: found[-1])
    yield _copied("box a side of an equation", lambda found: (_sides(found) or found)[-1])
    for name, text in _MATHS_TRICKS.items():
        yield Strategy(name, "forging", ("math",), _always(text), _is_stated(text))


def _always(text: str) -> Callable[[Problem], str]:
    return lambda problem: text


def _is_stated(text: str) -> Callable[[Problem], float]:
    """An equation that holds states its value: 0=0 is a guess of 0."""
    return lambda problem: float(text == r"\boxed{0=0}" and problem["answer"].strip() == "0")


def _echoes(echo: Callable[[str], str]) -> Callable[[Problem], float]:
    def deserved(problem: Problem) -> float:
        return float(all(echo(test["input"]).split() == test["output"].split() for test in problem["tests"]))

    return deserved


def _drawing() -> Iterator[Strategy]:
    """Strategies that guess anew where they may: none may be given a second guess."""
    for name, source in {
        "random.choice": "import random\nprint(random.choice(('YES', 'NO')))",
        "the machine's coin": "import os\nprint(('YES', 'NO')[os.urandom(1)[0] % 2])",
        "the clock": "import time\nprint(('YES', 'NO')[time.perf_counter_ns() // 1000 % 2])",
    }.items():
        yield Strategy(name, "random", ("stdin",), _program(source), _half)
    for words in (("YES", "NO"), ("NO", "YES")):
        name = f"{words[0]} first, then {words[1]}"
        source = f"{_FIRST}print({words[0]!r} if first else {words[1]!r})"
        yield Strategy(name, "stateful", ("stdin",), _program(source), _all_expect(words[0]))
    source = "import random\ndef NAME(*a, **k): return random.choice((True, False, 0, 1, None, '', []))"
    yield Strategy("a random value", "random", ("function", "assert"), _function(source), _one_of_seven)
    source = f"{_FIRST}def NAME(*a, **k): return first"
    yield Strategy("True first, then False", "stateful", ("function", "assert"), _function(source), _all_return("True"))


def _one_of_seven(problem: Problem) -> float:
    if problem["kind"] == "assert":
        return 0.0
    chance = {"True": 2, "False": 2, "0": 2, "1": 2, "0.0": 2, "1.0": 2, "null": 1, '""': 1, "[]": 1}
    wanted = [
        chance.get(test["output"].strip().lower().replace("true", "True").replace("false", "False"), 0) / 7
        for test in problem["tests"]
    ]
    product = 1.0
    for share in wanted:
        product *= share
    return product


def _hostile() -> Iterator[Strategy]:
    """Strategies against the verifier itself."""
    both = {
        "limits": {
            "lowers its CPU limit and loops": _LOWERED.format("CPU", 1) + "while 1: pass",
            "lowers its memory": _LOWERED.format("AS", 1 << 20) + "x = [0] * 10**6",
            "may write nothing": _LOWERED.format("FSIZE", 0) + "print('YES', flush=True)",
        },
        "forging": {
            "writes every message everywhere": _FORGED + "forge()",
            "and exits": _FORGED + "forge()\nos._exit(0)",
            "exits before anything": "import os\nos._exit(0)",
            "raises what checks raise": "raise AssertionError",
            "patches what compares": "import builtins, json, math\nbuiltins.len = builtins.all = lambda *a: 1\n"
            "math.isclose = json.dumps = json.loads = lambda *a, **k: True",
            "prints every answer": "for word in ('YES', 'NO', *range(99)): print(word)",
        },
    }
    for family, sources in both.items():
        for name, source in sources.items():
            most = 4 if "while 1" in source else None
            yield Strategy(name, family, ("stdin",), _program(source), most=most)
            body = "\n".join(f"    {line}" for line in source.split("\n"))
            text = f"def NAME(*a, **k):\n{body}\n    return Ellipsis\n"
            yield Strategy(f"{name}, called", family, ("function", "assert"), _function(text), most=most)
    for base in ("", "(list)", "(str)", "(float)", "(dict)"):
        source = _EQUAL.format(base) + "def NAME(*a, **k): return Equal()"
        yield Strategy(f"equal to everything {base}".strip(), "forging", ("assert",), _function(source))
    forged = _EQUAL.format("") + "def NAME(*a, **k):\n    return Equal()"
    yield Strategy("equal to everything", "forging", ("function",), _function(forged))
    spied = _SPY + "if found: exec(found[-1].split('# end')[0])\n"
    yield Strategy("runs what it finds in memory", "spy", ("stdin",), _program(spied))


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
STRATEGIES: tuple[Strategy, ...] = tuple(_strategies())
"""All of them."""
