"""Samples that a statement shows, and the program that is a table of them. Pure.

Published sets use blocks below `Sample Input 1` and `Output`, or `Input: nums = [1, 2], k = 3`. They also use calls as
in doctests, assertions, and `f(1, 2) -> 3`. A sample that is read wrongly is a row that no test asks for.
"""

import ast
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from oapl_core.verdicts.extraction import fenced

_HEADING = re.compile(r"[\W_]*(?:(?:sample|example|test)\s+)?(input|output)\s*#?\s*\d*[\W_]*", re.IGNORECASE)
_INLINE = re.compile(r"[\W_]*(?:(?:sample|example)\s+)?(input|output)\s*\d*\**\s*:\**\s*(\S.*)", re.IGNORECASE)
_LAST = re.compile(r"[\W_]*(?:explanation|note|notes|constraints?|examples?|samples?|hint)\b", re.IGNORECASE)
_ARROW = re.compile(r"`?\s*(?:==|-+>|=+>|➞|→|#|=|(?:should )?returns?\b|gives\b|is\b)?\s*`?")
_LONGEST = 4000
"""Characters of a call and its value in a statement, at most."""
_TRIED = 60
"""Ends of a call or value that are tried."""
_CALLED = """TABLE = {table!r}
def plain(value):
    return [plain(one) for one in value] if isinstance(value, (list, tuple)) else value
def {name}(*a, **k):
    for given, value in TABLE:
        if plain(given) == plain([*a, *k.values()]):
            return value
"""
_READING = "import sys\nTABLE = {table!r}\nprint(TABLE.get(' '.join(sys.stdin.read().split()), ''))\n"
Calls = list[tuple[list[Any], Any]]


def blocks(statement: str) -> dict[str, str]:
    """Return output by input of a statement's samples, the input's words joined by single spaces."""
    found, kind, given, printed = dict[str, str](), "", list[str](), list[str]()
    for line in [*statement.splitlines(), "Input"]:
        heading, inline = _HEADING.fullmatch(line), _INLINE.fullmatch(line)
        named = (heading or inline or ("", ""))[1].lower()
        if named == "input" or (not named and _LAST.match(line)):
            # the first paragraph of the output: prose may follow
            first = "\n".join(printed).strip().split("\n\n")[0]
            if first and (words := " ".join(" ".join(given).split())):
                found.setdefault(words, first)
            kind, given, printed = named, [], []
        elif named == "output":
            kind = named if given else ""
        elif line.strip().startswith("```"):
            kind = "" if printed else kind
        else:
            {"input": given, "output": printed}.get(kind, []).append(line)
        if inline and not heading:
            {"input": given, "output": printed}.get(kind, []).append(inline[2])
    return found


def calls(statement: str, entry_point: str) -> Calls:
    """Read arguments and value of each call of the function that a statement shows, and of `Input: a = 1, b = 2`."""
    found: Calls = []
    for start in re.finditer(rf"(?<![\w.]){re.escape(entry_point)}\(", statement):
        inside = _closed(statement[start.end() : start.end() + _LONGEST])
        arguments = None if inside is None else _arguments(inside)
        if inside is not None and arguments is not None:
            rest = statement[start.end() + len(inside) + 1 :][:_LONGEST]
            found += [(arguments, value) for value in _values(_ARROW.sub("", rest, count=1))]
    for given, printed in re.findall(r"input\W*?:\**\s*(.+?)\s*\n+\W*output\W*?:\**\s*(.+)", statement, re.IGNORECASE):
        arguments = _arguments(given)
        if arguments is not None:
            found += [(arguments, value) for value in _values(printed)]
    return found


def _closed(text: str) -> str | None:
    """Return the text before the bracket that closes a call."""
    for end in [match.start() for match in re.finditer(r"\)", text)][:_TRIED]:
        if _arguments(text[:end]) is not None:
            return text[:end]
    return None


def _arguments(text: str) -> list[Any] | None:
    """Read values of a call's arguments, in order; None if one is no value."""
    try:
        call = ast.parse(f"f({text})", mode="eval").body
        if not isinstance(call, ast.Call):
            return None
        return [_literal(ast.unparse(node)) for node in (*call.args, *(word.value for word in call.keywords))]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _values(text: str) -> Iterator[Any]:
    """Yield the value that a text begins with; nothing where it begins with none."""
    line = text.partition("\n")[0]
    # the whole line, then less and less of it: a comment or a sentence may follow
    ends = [len(line), *reversed([match.start() for match in re.finditer(r"[\s.,;`*#]", line)])]
    for end in ends[:_TRIED]:
        with suppress(SyntaxError, ValueError, RecursionError, MemoryError):
            yield _literal(line[:end])
            return


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text.strip())
    except (SyntaxError, ValueError):
        return json.loads(text)  # true, false and null


def table_of(problem: Mapping[str, Any]) -> str | None:
    """Return a response whose program knows a statement's samples only; None where the statement shows none."""
    statement, name = problem["statement"] or "", problem["entry_point"]
    if problem["kind"] == "stdin":
        known = blocks(statement)
        return fenced(_READING.format(table=known)) if known else None
    shown = calls(statement, name) if name else []
    return fenced(_CALLED.format(table=shown, name=name)) if shown else None


def shows_all_tests(problem: Mapping[str, Any]) -> float:
    """Return 1 where each test is a sample that the statement shows, with its value; else 0."""
    statement, tests = problem["statement"] or "", problem["tests"]
    if problem["kind"] == "stdin":
        known = blocks(statement)
        printed = [known.get(" ".join(test["input"].split()), "").split() for test in tests]
        return float(all(ours == test["output"].split() for ours, test in zip(printed, tests, strict=True)))
    shown = calls(statement, problem["entry_point"])
    if problem["kind"] == "assert":
        asked = [call for test in tests for call in _asked(test["input"], problem["entry_point"])]
        return float(bool(asked) and all(any(_plain(a) == _plain(given) for given, _ in shown) for a in asked))
    return float(all(_is_shown(test, shown) for test in tests))


def _is_shown(test: Mapping[str, str], shown: Calls) -> bool:
    given, wanted = json.loads(test["input"]), json.loads(test["output"])
    return next((_plain(value) == wanted for arguments, value in shown if _plain(arguments) == given), False)


def _asked(checks: str, entry_point: str) -> Iterator[list[Any] | None]:
    """Read arguments of each call that checks make of the function, by its name or as `candidate`."""
    try:
        nodes = list(ast.walk(ast.parse(checks)))
    except (SyntaxError, ValueError):
        return
    for node in nodes:
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in (entry_point, "candidate")
        ):
            yield _arguments(ast.unparse(node).partition("(")[2].rpartition(")")[0])


def _plain(value: Any) -> Any:
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value
