r"""The door to math-verify: a persistent worker process that says whether two maths answers are equal.

Reads one JSON line {"gold", "answer", "statement"} from standard input, writes one JSON line {"equal", "parsed", ...}:
see `Judge.judge`. Started by exec with a list of import paths; confines itself after its imports (read-only file
system, no network, no new process, a memory limit), because answers are untrusted text. math-verify's own timeouts are
off (they need signals); maths_pool.py bounds the CPU time from outside.

A worker lives for many answers, and its memory holds what it read before: other golds and answers, in caches and in
freed memory. No answer can read them: answers are parsed as LaTeX and compared, never executed. sympy's own reader of
strings compiles what it is given; no text gets there (`_number`), and from the first request on `_refuse_code` forbids
this process to compile any. What leaves the process are true-or-false words about each pair.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from oapl_core.verdicts import maths_echo, maths_units, maths_words
from oapl_core.verdicts.maths_equality import Equality
from oapl_core.verdicts.maths_evaluation import evaluated
from oapl_core.verdicts.maths_relations import is_name
from oapl_core.verdicts.maths_text import compact, plain

MEMORY_MB = 1024
_NUMBER = re.compile(r"(-?)(?:(\d+(?:\.\d+)?|\.\d+)(?:/(\d+))?|\\frac\{(-?\d+)\}\{(\d+)\})")
_COMMAS = re.compile(r"\s*-?\d{1,3}(?:,\d{3})+(?:\.\d+)?\s*")
_OWN_LETTERS = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z]")
_COMMAND = re.compile(r"\\(?:text\{[^{}]*\}|[a-zA-Z]+)")
_WORDS_INSIDE = re.compile(r"\\text\s*\{(?!\s*[A-Za-z]+\s*\})")
_TWO_NUMBERS = re.compile(r"(?<!\\frac )\b\d+(?:\.\d+)? +[\d.]")
_OR = re.compile(r"(?<![a-zA-Z\\])or(?![a-zA-Z])|\\text\s*\{\s*or\s*\}|\\(?:lor|vee)(?![a-zA-Z])")
_MAKES_CODE = str(Path("sympy", "polys", "monomials.py"))
_CLOSE = 0.05
"""By how much the sides of an "approximately" may differ, relatively."""


@dataclass(frozen=True)
class Answer:
    """A gold or an answer, taken apart: its plain text, the text without unit, and the unit."""

    text: str
    rest: str
    unit: str

    @property
    def has_letters(self) -> bool:
        """Whether variables stand in it."""
        return bool(_OWN_LETTERS.search(_COMMAND.sub(" ", self.rest)))


class Judge:
    """Says whether an answer means the same as a gold. Not for several threads."""

    def __init__(self) -> None:
        """Imports math-verify."""
        from latex2sympy2_extended.latex2sympy2 import (
            ConversionConfig,
            NormalizationConfig,
            _Latex2Sympy,
            normalize_latex,
        )
        from math_verify import verify

        nothing_of_units = NormalizationConfig(units=False, malformed_operators=True, nits=True, boxed="none")
        letters_as_they_are = ConversionConfig(lowercase_symbols=False)

        def parse(text: str) -> Any:
            converter = _Latex2Sympy(is_real=True, convert_degrees=True, config=letters_as_they_are)
            converter.parse_number = _number  # its own gives the digits to sympy, which would compile them as Python
            converter.convert_postfix_list = partial(_product, converter, converter.convert_postfix_list)
            latex = normalize_latex(text, nothing_of_units)
            return _number(latex) if _COMMAS.fullmatch(latex) else converter.parse(latex)

        self._parse: Callable[[str], Any] = parse
        self._verify: Callable[..., Any] = verify
        self._gold = lru_cache(maxsize=4096)(lambda gold: self._split(gold, True, False))
        self._read = lru_cache(maxsize=4096)(self.read)
        self._formulas = lru_cache(maxsize=256)(self._statement)

    def judge(self, gold: str, answer: str, statement: str = "") -> dict[str, bool]:
        """{"equal", "parsed": both could be read, "same": the same plain text, "echo", "error": a library broke}."""
        reply = {"equal": False, "parsed": False, "same": False, "echo": False, "error": True}
        # The boundary of one row: whatever an answer makes a library raise is that answer's fault, and counted.
        with suppress(Exception):
            reply |= self._judged(gold, answer, statement)
            reply["error"] = False
        return reply

    def _judged(self, gold: str, answer: str, statement: str) -> dict[str, bool]:
        ours = self._gold(gold)
        theirs = self._split(answer, not ours.has_letters, not ours.has_letters)
        same = compact(ours.text) == compact(theirs.text) != ""
        if not maths_units.agree(ours.unit, theirs.unit):
            return {"parsed": True, "same": same}
        lettered = self._letter_by_letter(ours, theirs)
        if lettered is not None:
            return {"equal": lettered, "parsed": True, "same": same}
        gold_value, value = self._read(ours.rest), self._read(theirs.rest)
        if gold_value is None or value is None:
            return {"same": same}
        equal = self._equal(ours, gold_value, theirs, value)
        is_rewritten = compact(ours.rest) != compact(theirs.rest)
        echo = equal and is_rewritten and self._is_echo(ours, gold_value, theirs, value, statement)
        return {"equal": equal and not echo, "parsed": True, "same": same, "echo": echo}

    @staticmethod
    def _split(text: str, has_words: bool, has_letters: bool) -> Answer:
        text = plain(text)
        rest, unit = maths_units.split_unit(text, has_words, has_letters)
        return Answer(text, plain(rest) if unit else rest, unit)

    @staticmethod
    def _letter_by_letter(gold: Answer, answer: Answer) -> bool | None:
        """Words, choices and numbers in a base; None: this is maths."""
        ours, theirs = maths_words.word(gold.text), maths_words.word(answer.text)
        if _WORDS_INSIDE.search(gold.rest):
            ours = maths_words.literal(gold.text)
        if ours and (theirs or ours.is_text):
            return maths_words.equal_words(ours, theirs or maths_words.literal(answer.text))
        if theirs and theirs.is_text:
            return False
        based, other = maths_words.in_base(gold.rest), maths_words.in_base(answer.rest)
        if based:
            return other == based or (other is None and maths_words.bare_digits(answer.rest) == based[0])
        if other:
            return other[1] == 10 and maths_words.bare_digits(gold.rest) == other[0]
        return None

    def read(self, text: str) -> Any | None:
        """A plain text as a sympy object; None if it cannot be read, or says more than maths."""
        number = _NUMBER.fullmatch(text)
        if number:
            return _rational(number)
        decimal = maths_words.decimals_for_bases(text) if "_" in text else text
        if decimal is None or any(sign in decimal for sign in "'\"`?"):
            return None
        if _WORDS_INSIDE.search(decimal) or (" " in decimal and _TWO_NUMBERS.search(decimal)):
            return None
        found, sides = None, _OR.split(decimal)
        with suppress(Exception):  # what the parser refuses by raising Exception itself is no maths
            found = self._approximated(decimal) if "\\approx" in decimal else _readable(self._parse(decimal))
        return self._alternatives(sides) if found is None and len(sides) > 1 else found

    def _alternatives(self, texts: list[str]) -> Any | None:
        """x < 1 or x > 3, which the parser does not know as a list."""
        from latex2sympy2_extended.sets import FiniteSet

        values = [self.read(text.strip()) for text in texts]
        return None if any(value is None for value in values) else FiniteSet(*values)

    def _approximated(self, text: str) -> Any | None:
        """The exact side, if the other is near it; what is only named takes the other."""
        exact, _, rounded = text.partition("\\approx")
        ours, theirs = _readable(self._parse(exact)), _readable(self._parse(rounded))
        if ours is None or theirs is None or is_name(ours):
            return None if ours is None else theirs
        side = getattr(ours, "rhs", ours)
        one, other = evaluated(side), evaluated(theirs)
        return ours if one is not None and other is not None and abs(one - other) <= _CLOSE * abs(one) else None

    def _equal(self, gold: Answer, gold_value: Any, answer: Answer, value: Any) -> bool:
        equality = Equality(
            lambda ours, theirs: bool(self._verify([ours], [theirs], timeout_seconds=None)),
            "." in gold.rest or "." in answer.rest,
            (gold.rest.startswith("\\{"), answer.rest.startswith("\\{")),
        )
        if equality.equal(gold_value, value):
            return True
        if (gold.unit == "percent") == (answer.unit == "percent"):
            return False
        return equality.equal(_part(gold, gold_value), _part(answer, value))

    def _is_echo(self, gold: Answer, gold_value: Any, answer: Answer, value: Any, statement: str) -> bool:
        if not statement:
            return False
        known, trees = self._formulas(statement)
        return maths_echo.is_echo(gold_value, value, (gold.rest, answer.rest), known, trees)

    def _statement(self, statement: str) -> tuple[list[str], frozenset[maths_echo.Tree]]:
        known = maths_echo.formulas(statement)
        return known, maths_echo.parts(known, self._read)


def _product(converter: Any, otherwise: Callable[..., Any], factors: Sequence[Any], first: int = 0) -> Any:
    """Factors side by side, multiplied: the parser adds whole numbers that stand so, 2(3) as a mixed number."""
    import sympy

    one = converter.convert_postfix(factors[first])
    if first == len(factors) - 1 or not isinstance(one, sympy.Expr | sympy.MatrixBase):
        return otherwise(factors, first)
    others = converter.convert_postfix_list(factors, first + 1)
    is_matrix = isinstance(one, sympy.MatrixBase) or isinstance(others, sympy.MatrixBase)
    return (converter.mat_mul_flat if is_matrix else converter.mul_flat)(one, others)


def _number(digits: str) -> Any:
    """A number of an answer: exact, as it is written."""
    from sympy import Rational

    return Rational(digits.replace(",", ""))


def _rational(number: re.Match[str]) -> Any | None:
    """The number that `_NUMBER` found; decimals as they are written, not as floating-point numbers."""
    from sympy import Rational

    sign, whole, below, above, under = number.groups()
    if int(below or under or 1) == 0:
        return None
    return (-1 if sign else 1) * (Rational(whole or above) / int(below or under or 1))


def _readable(parsed: Any) -> Any | None:
    """What the parser made, if it is maths: not a truth value, a list of rows or no number at all."""
    import sympy
    from sympy.logic.boolalg import BooleanAtom

    if not isinstance(parsed, sympy.Basic | sympy.MatrixBase) or isinstance(parsed, BooleanAtom):
        return None
    return None if parsed in (sympy.nan, sympy.zoo) else parsed


def _part(answer: Answer, value: Any) -> Any:
    """A percentage as the part that it is."""
    import sympy

    is_percentage = answer.unit == "percent" and isinstance(value, sympy.Expr)
    return value / 100 if is_percentage else value


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
    judge = Judge()
    for gold, answer in _WARMING:  # lazy imports and parser tables, while files are still readable at full speed
        judge.judge(gold, answer)
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # nothing a library prints may enter the channel
    confine_reader([p for p in sys.path if p], MEMORY_MB)
    sys.addaudithook(_refuse_code)
    channel.write('{"ready": true}\n')
    channel.flush()
    for line in sys.stdin:
        request = json.loads(line)
        channel.write(json.dumps(judge.judge(request["gold"], request["answer"], request.get("statement", ""))) + "\n")
        channel.flush()


_WARMING = (
    ("\\frac{1}{2}", "0.5"),
    ("x^2 + 2x + 1", "(x+1)^2"),
    ("y = 2x", "2x - y = 0"),
    ("(-\\infty, 3)", "x < 3"),
    ("\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}", "(1, \\sqrt{4})"),
    ("1, 2", "\\{2, \\sin 30^\\circ\\}"),
)
