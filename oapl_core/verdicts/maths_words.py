r"""Answers that are no maths: words, choices and numbers in a base. They are compared letter by letter. Pure.

Letters do not commute: "east" is not "seat", ABC is not CAB. In \text{...} or out of it, in parentheses or not, is all
the same; case is kept by single letters (variables, choices) and by golds in capitals, words may differ in it.
"""

import re
from dataclasses import dataclass

_TEXT = re.compile(r"\\text\s*\{([^{}]*)\}")
_LETTERS = re.compile(r"[A-Za-z][A-Za-z ,'-]*[A-Za-z]")
_CAPITALS = frozenset({"YES", "NO", "TRUE", "FALSE", "EVEN", "ODD", "NONE"})
_BASED = re.compile(
    r"\(?([0-9A-Z][0-9A-Z ]*?)\)?\s*_\s*(?:\{\s*(?:\\text\s*\{\s*)?(\w+)\s*\}?\s*\}|(\d)|\\text\{(\w+)\})"
)
_DIGITS_IN_BASE = re.compile(r"(?<![\w}])(\d+)_(?:\{(\d+)\}|(\d))(?!\d)")
_NUMBERS = "two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen".split()
_BASES = {name: number for number, name in enumerate(_NUMBERS, 2)}


@dataclass(frozen=True)
class Word:
    """A word answer. `is_text`: it was set as words, so that it cannot be a product of variables."""

    letters: str
    is_text: bool


def word(text: str) -> Word | None:
    r"""A plain answer that is words: \text{...} alone, or two letters and more with nothing else."""
    found = _TEXT.fullmatch(text)
    inner = (found[1] if found else text).strip().removesuffix(".").strip()
    if re.fullmatch(r"\([^()]*\)", inner):
        inner = inner[1:-1].strip()
    if inner in ("and", "or", "dots") or not re.search(r"[A-Za-z]", inner):
        return None
    return literal(inner) if found else _bare_word(inner)


def literal(text: str) -> Word:
    r"""A text to be compared letter by letter, in \text or out of it: dates, times, sentences."""
    return Word(re.sub(r"[\s-]+", " ", _TEXT.sub(r" \1 ", text)).strip().removesuffix("."), True)


def _bare_word(text: str) -> Word | None:
    if not _LETTERS.fullmatch(text) or "," in text:
        return None
    if any(sign in text for sign in " '-") and not re.search(r"[A-Za-z]{3}", text):
        return None  # x y or a-b: variables
    if re.search(r"\b(?:and|or)\b|\b[A-Za-z]-|-[A-Za-z]\b", text):
        return None
    return Word(re.sub(r"[\s-]+", " ", text), False)


def equal_words(gold: Word, answer: Word) -> bool:
    """Whether two words are the same; in another case only where the gold is not in capitals."""
    ours, theirs = gold.letters, answer.letters
    if ours == theirs:
        return True
    return ours.lower() == theirs.lower() and (ours != ours.upper() or ours in _CAPITALS)


def in_base(text: str) -> tuple[str, int] | None:
    r"""Digits and base of a number such as 52_8, 4210_{5} or 13_{\text{six}}."""
    found = _BASED.fullmatch(text)
    if found is None:
        return None
    named = found[2] or found[3] or found[4]
    base = int(named) if named.isdecimal() else _BASES.get(named.lower())
    digits = found[1].replace(" ", "").lstrip("0") or "0"
    return None if base is None or not digits.isalnum() else (digits, base)


def bare_digits(text: str) -> str | None:
    """Digits without a base, as `in_base` writes them."""
    return text.lstrip("0") or "0" if re.fullmatch(r"[0-9A-Z]+", text) else None


def decimals_for_bases(text: str) -> str | None:
    """Numbers in a base inside of an expression become decimal, as the parser drops the base; None if one is none."""

    def value(found: re.Match[str]) -> str:
        return str(int(found[1], int(found[2] or found[3])))

    try:
        found = _DIGITS_IN_BASE.sub(value, text)
    except ValueError:  # a digit that the base does not have, or no base
        return None
    return None if re.search(r"\d\}?\s*_", found) else found
