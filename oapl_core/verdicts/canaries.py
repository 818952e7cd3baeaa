"""Programs that are known to be right or wrong, judged before any other is trusted, and with every part again."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from oapl_core.verdicts.extraction import fenced
from oapl_core.verdicts.outcomes import Outcome

if TYPE_CHECKING:
    from oapl_core.toolchain import Toolchain

Canary = tuple[dict[str, Any], str, Outcome]
"""A problem, a response, and what has to be said of it."""
PROGRAMS = ("stdin", "function", "assert")
"""Kinds of problems whose answers are programs."""
KINDS = (*PROGRAMS, "math")
"""Kinds that have canaries."""


def canaries(kinds: Collection[str], toolchains: Sequence[Toolchain]) -> list[Canary]:
    """Return the canaries of these problem kinds, in Python, and those of the toolchains."""
    found = [canary for canary in _OF_PYTHON if canary[0]["kind"] in kinds]
    for one in toolchains:
        for name, source, right in (
            ("right", one.right, Outcome.PASSED),
            ("wrong", one.wrong, Outcome.WRONG_ANSWER),
        ):
            problem, *_ = _canary("stdin", f"{one.name}-{name}", "", right)
            found.append((problem | {"language": one.name}, fenced(source, one.fences[0]), right))
    return found


_CANARY_TESTS = {
    "stdin": (("2 3\n", "5\n"), ("4 4\n", "8\n")),
    "function": (("[2, 3]", "5"), ("[4, 4]", "8")),
    "assert": (("assert add(2, 3) == 5\nassert add(4, 4) == 8\n", ""),),
}


def _canary(kind: str, name: str, answer: str, right: Outcome) -> tuple[dict[str, Any], str, Outcome]:
    problem = {
        "problem_id": f"canary-{kind}-{name}",
        "kind": kind,
        "entry_point": "add",
        "tests": [{"input": given, "output": wanted} for given, wanted in _CANARY_TESTS[kind]],
    }
    return problem, answer, right


# One correct and one wrong answer of each kind, so that a verifier that says the same to everything is found out.
_READ = "a, b = map(int, input().split())"
_OF_PYTHON = (
    _canary("stdin", "right", f"```python\n{_READ}\nprint(a + b)\n```", Outcome.PASSED),
    _canary("stdin", "wrong", f"```python\n{_READ}\nprint(a * b - 1)\n```", Outcome.WRONG_ANSWER),
    _canary("function", "right", "```python\ndef add(a, b):\n    return a + b\n```", Outcome.PASSED),
    _canary("function", "wrong", "```python\ndef add(a, b):\n    return 5\n```", Outcome.WRONG_ANSWER),
    _canary("assert", "right", "```python\ndef add(a, b):\n    return a + b\n```", Outcome.PASSED),
    _canary("assert", "wrong", "```python\ndef add(a, b):\n    return 5\n```", Outcome.WRONG_ANSWER),
    _canary("assert", "early", "```python\ndef add(a, b):\n    raise SystemExit\n```", Outcome.WRONG_ANSWER),
)
