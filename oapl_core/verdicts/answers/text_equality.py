"""Equality of short texts with golds, and the words that they share; pure.

Normalisation and F1 begin with those of SQuAD's evaluation script (arXiv 1606.05250). A normal text is in lower case,
without punctuation and articles, with single spaces. Unlike SQuAD's, it keeps signs by which short answers differ:
-5 is not 5, 1.5 not 15, C++ not C#. docs/extras/rows.md lists them. F1 counts words that answer and gold share, and the
best gold counts. A gold of one letter names a choice: "B", "(b)", "B) Paris" and the text of that choice say it.
"""

import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from oapl_core.storable import json_object

# a sign that stays is part of its word: the blood group a+ is no article
_ARTICLES = re.compile(r"(?<![\w*+/^=<>:.%#-])(?:a|an|the)(?![\w*+/^=<>:.%#-])")
_OPERATORS = re.compile(r"(?<=\d)[ \t]*([-+*/^]|[<>=]=?)[ \t]*(?=[-+]?\.?\d)|(?<=\w)[ \t]*([<>]=?|=)[ \t]*(?=\w)")
_RIGHT_OF = re.compile(r"(?<!\w)([<>]=?)[ \t]+(?=[-+]?\.?\d)|(?<=\d)[ \t]+(%)")
# - 5 alone is -5; before more words it begins an item of a list
_ALONE = re.compile(r"^\s*-[ \t]+(?=[$]?\.?\d[\d.,]*[ \t]*%?\s*$)")
# 1,000 is one number; 1,2 are two, with a blank or without
_LISTED = re.compile(r"(?<=\d),(?!(?:\d\d,)*\d{3}(?!\d))(?=\d)")
_SIGNS = re.compile(
    r"""(?P<kept>
        (?<=\d)[-*/:^](?=[-+]?\.?\d)             # 10-15, 3/4, 10:30, 2^3, 2^-3
        | (?<=\de)-(?=\d)                         # 1e-5
        | (?<![a-z0-9])-(?=[$]?\.?\d)             # -5, -.5, but covid-19 is covid19
        | (?<![a-z.])\.(?=\d)                     # 1.5, .5, but no.5 is no5 and U.S. is us
        | (?<=[a-z0-9+])[+](?![a-z])              # c++, a+, 2+3, but +5 is 5
        | (?:(?<=\b[a-z])|(?<=\b[a-z]{2}))-(?!\w)  # o-, cl-
        | (?<=[a-z])[#](?![a-z])                  # c#, but #1 is 1
        | (?<=\d)%
        | [<>]=?(?=[-+.]*\d) | (?<=\w)[<>]=?(?=\w) | (?<=\d)[<>]=?
        | (?<=[a-z0-9])[=^](?=[-+.]*[a-z0-9])
    )|[!-/:-@\[-`{-~]""",
    re.VERBOSE,
)
# no sign that stays: "C++" and "A-" name no choice
_CHOICE = re.compile(r"\W*([A-Za-z])(?:[^\w+#-]*|[).:]\s.*)", re.DOTALL)
_LETTER = re.compile(r"[A-Z]")


def golds(problem: Mapping[str, Any]) -> list[str]:
    """Return every gold of a problem: `answers` of its own columns, else `answer`."""
    several = json_object(problem.get("info")).get("answers")
    return [str(one) for one in several] if isinstance(several, list) and several else [problem["answer"] or ""]


def is_equal(problem: Mapping[str, Any], answer: str, is_exact: bool) -> bool:
    """Tell whether an answer is one of the golds; ``is_exact``: letter by letter, but for blanks at the ends."""
    wanted = golds(problem)
    if is_exact:
        return answer.strip() in [one.strip() for one in wanted]
    # a letter alone would be an article to drop, or a part of a word
    if any(_LETTER.fullmatch(one.strip()) for one in wanted):
        said = _choice(answer, problem)
        return said is not None and said in [one.strip() for one in wanted]
    return any(_is_same(answer, one) for one in wanted)


def f1(problem: Mapping[str, Any], answer: str) -> float:
    """Return the F1 of the words of an answer with the best gold, from 0 to 1; a gold without words is equal or not."""
    wanted = [normalised(one).split() for one in golds(problem)]
    if [] in wanted and is_equal(problem, answer, is_exact=False):
        return 1.0
    return max(_f1(normalised(answer).split(), one) for one in wanted)


def normalised(text: str) -> str:
    """Return a text in lower case without articles and punctuation that tells no answers apart, with single spaces."""
    text = _ALONE.sub("-", text.lower().replace("\u2212", "-"))
    text = _OPERATORS.sub(r"\1\2", text)
    text = _SIGNS.sub(lambda sign: sign["kept"] or "", _LISTED.sub(" ", _RIGHT_OF.sub(r"\1\2", text)))
    return " ".join(_ARTICLES.sub(" ", text).split())


def _is_same(answer: str, gold: str) -> bool:
    """Tell whether two texts are the same words; what has none, such as ">" or "the", only equals itself."""
    normal = normalised(gold)
    return normalised(answer) == normal if normal else answer.strip().lower() == gold.strip().lower()


def _f1(said: Sequence[str], wanted: Sequence[str]) -> float:
    shared = (Counter(said) & Counter(wanted)).total()
    if not shared:
        return 0.0
    precision, recall = shared / len(said), shared / len(wanted)
    return 2 * precision * recall / (precision + recall)


def _choice(answer: str, problem: Mapping[str, Any]) -> str | None:
    """Return the letter of a choice that an answer names, by itself or by the choice's text."""
    if match := _CHOICE.fullmatch(answer.strip()):
        return match[1].upper()
    choices = json_object(problem.get("info")).get("choices")
    texts = choices.get("text") if isinstance(choices, dict) else choices
    if not isinstance(texts, list):
        return None
    same = [number for number, text in enumerate(texts) if _is_same(answer, str(text))]
    return string.ascii_uppercase[same[0]] if len(same) == 1 and same[0] < len(string.ascii_uppercase) else None
