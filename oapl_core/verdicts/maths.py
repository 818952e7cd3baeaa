r"""A persistent worker process that says whether two maths answers are equal.

Reads one JSON line {"gold", "answer", "statement"} from standard input, writes one JSON line {"equal", "parsed", ...}:
see `MathsJudge.judge`; or {"pattern", "text"}, and writes {"found", ...}. Started by exec with a list of import paths;
confines itself after its imports (read-only file system, no network, no new process, a memory limit), because answers
are untrusted text.

A worker lives for many answers, and its memory holds what it read before: other golds and answers, in caches and in
freed memory. No answer can read them: answers are parsed as LaTeX and compared, never executed. sympy's own reader of
strings compiles what it is given; no text gets there (`maths_parse._exact`), and from the first request on
`_refuse_code` forbids this process to compile any. What leaves the process are true-or-false words about each pair.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from oapl_core.verdicts import maths_echo
from oapl_core.verdicts.extraction import matched
from oapl_core.verdicts.maths_equality import Equality
from oapl_core.verdicts.maths_evaluation import evaluated
from oapl_core.verdicts.maths_gold import Gold, is_closed_at_infinity
from oapl_core.verdicts.maths_parse import Parser
from oapl_core.verdicts.maths_statement import Statement
from oapl_core.verdicts.maths_text import compact
from oapl_core.verdicts.maths_units import Allowed, SplitAnswer, agree
from oapl_core.verdicts.maths_words import equal_letters

MEMORY_MB = 1024
_MAKES_CODE = str(Path("sympy", "polys", "monomials.py"))


class MathsJudge:
    """Says whether an answer means the same as a gold. Not for several threads."""

    def __init__(self) -> None:
        """Imports math-verify."""
        self._parser = Parser()
        # A group's answers share one gold and one statement, so both are taken apart once.
        self._statement = lru_cache(maxsize=4096)(Statement.of)
        self._gold = lru_cache(maxsize=4096)(self._read_gold)
        self._formulas = lru_cache(maxsize=1024)(self._taken_apart)

    def judge(self, gold: str, answer: str, statement: str = "") -> dict[str, bool]:
        """{"equal", "parsed": both could be read, "same": the same plain text, "echo", "error": a library broke}."""
        reply = {"equal": False, "parsed": False, "same": False, "echo": False, "error": True}
        # The boundary of one row: whatever an answer makes a library raise is that answer's fault, and counted.
        with suppress(Exception):
            reply |= self._judged(self._gold(gold, statement), answer, self._statement(statement))
            reply["error"] = False
        return reply

    def _read_gold(self, gold: str, statement: str) -> Gold:
        return Gold.of(gold, self._statement(statement))

    def _judged(self, gold: Gold, text: str, statement: Statement) -> dict[str, bool]:
        answer = SplitAnswer.of(text, Allowed.of_answer(statement, gold.split))
        reply = {"parsed": True, "same": compact(gold.split.text) == compact(answer.text) != ""}
        said = gold.says(answer.text, self._same_text)
        if said is not None:
            return reply | {"equal": said}
        split, answer = gold.split, gold.comparable(answer, statement)
        if not agree(split.unit, answer.unit) or is_closed_at_infinity(answer.rest) > is_closed_at_infinity(split.rest):
            return reply
        lettered = equal_letters(split, answer)
        if lettered is not None:
            return reply | {"equal": lettered}
        value, given = self._parser.read(split.rest), self._parser.read(answer.rest)
        if value is None or given is None:
            return reply | {"parsed": False}
        equal = self._equal(split, value, answer, given, statement)
        texts, echo = (split.rest, answer.rest), False
        # The gold's own form is always an answer.
        if equal and statement.text and compact(texts[0]) != compact(texts[1]):
            echo = maths_echo.is_echo(value, given, texts, self._formulas(statement.text))
        return reply | {"equal": equal and not echo, "echo": echo}

    def _same_text(self, gold: str, answer: str) -> bool:
        """Whether two plain texts, parts of a gold and an answer, mean the same."""
        if compact(gold) == compact(answer):
            return True
        one, other = self._parser.read(gold), self._parser.read(answer)
        return one is not None and other is not None and Equality(self._parser.same).equal(one, other)

    def _equal(self, gold: SplitAnswer, value: Any, answer: SplitAnswer, given: Any, statement: Statement) -> bool:
        texts = (gold.rest, answer.rest)
        is_braced = (texts[0].startswith("\\{"), texts[1].startswith("\\{"))
        equality = Equality(self._parser.same, any("." in text for text in texts), is_braced, statement.is_interval)
        is_part = gold.unit != "percent" and answer.unit == "percent"
        # 0.5 is 50%. The number before the sign counts where it can be no part, or where a percentage was asked for.
        if not (is_part and _is_small(value) and not statement.asks_percentage) and equality.equal(value, given):
            return True
        # 50% is 50 with its sign left out, and it is 0.5: the second is tried only where one side is a percentage.
        if (gold.unit == "percent") == (answer.unit == "percent"):
            return False
        return equality.equal(_part(gold, value), _part(answer, given))

    def _taken_apart(self, statement: str) -> maths_echo.StatementFormulas:
        return maths_echo.StatementFormulas.of(statement, self._parser.read)


def _is_small(value: Any) -> bool:
    """Whether a number is one that a part of something may be."""
    import sympy

    number = evaluated(value) if isinstance(value, sympy.Expr) else None
    return number is not None and bool(abs(number) <= 1)


def _part(answer: SplitAnswer, value: Any) -> Any:
    """A percentage as the part that it is."""
    import sympy

    return value / 100 if answer.unit == "percent" and isinstance(value, sympy.Expr) else value


def _refuse_code(event: str, arguments: tuple[Any, ...]) -> None:
    """An audit hook: no text is compiled in this process any more, whichever library asks for it.

    Modules may still be imported, and sympy may make its products of monomials, from the number of variables alone.
    """
    is_text = event == "compile" and not str(arguments[1]).endswith(".py")
    if is_text and not sys._getframe(1).f_code.co_filename.endswith(_MAKES_CODE):
        raise PermissionError("a maths answer is never compiled")


def main() -> None:
    """Serves requests until standard input ends."""
    from oapl_core.sandbox.jail import confine_reader

    logging.disable(logging.CRITICAL)
    judge = MathsJudge()
    for gold, answer in _WARMING:  # lazy imports and parser tables, while files are still readable at full speed
        judge.judge(gold, answer)
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # nothing a library prints may enter the channel
    confine_reader([p for p in sys.path if p], MEMORY_MB)
    sys.addaudithook(_refuse_code)  # last: it cannot be taken off, and the imports above compile
    channel.write('{"ready": true}\n')
    channel.flush()
    for line in sys.stdin:
        request = json.loads(line)
        if "pattern" in request:  # here, because a regular expression of a person's can take for ever
            reply: dict[str, Any] = {
                "found": matched(request["pattern"], request["text"]),
                "error": False,
                "echo": False,
            }
        else:
            reply = judge.judge(request["gold"], request["answer"], request.get("statement", ""))
        channel.write(json.dumps(reply) + "\n")
        channel.flush()


_WARMING = (
    ("\\frac{1}{2}", "0.5"),
    ("x^2 + 2x + 1", "(x+1)^2"),
    ("y = 2x", "2x - y = 0"),
    ("(-\\infty, 3)", "x < 3"),
    ("\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}", "(1, \\sqrt{4})"),
    ("1, 2", "\\{2, \\sin 30^\\circ\\}"),
)
