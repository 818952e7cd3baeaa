"""Equality of short texts with golds, and the words that they share; pure.

Normalisation and F1 are those of SQuAD's evaluation script (arXiv 1606.05250). A normal text is in lower case, without
punctuation and articles, with single spaces. F1 counts words that answer and gold share, and the best gold counts. A
gold of one letter names a choice: "B", "(b)", "B) Paris" and the text of that choice say it.
"""

import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from oapl_core.storable import json_object

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_CHOICE = re.compile(r"\W*([A-Za-z])(?:\W*|[).:]\s.*)", re.DOTALL)
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
    return normalised(answer) in map(normalised, wanted)


def f1(problem: Mapping[str, Any], answer: str) -> float:
    """Return the F1 of the words of an answer with the best gold, from 0 to 1."""
    return max(_f1(normalised(answer).split(), normalised(one).split()) for one in golds(problem))


def normalised(text: str) -> str:
    """Return a text in lower case without punctuation and articles, with single spaces."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def _f1(said: Sequence[str], wanted: Sequence[str]) -> float:
    # as in SQuAD's script: nothing equals nothing alone
    if not said or not wanted:
        return float(said == wanted)
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
    same = [number for number, text in enumerate(texts) if normalised(str(text)) == normalised(answer)]
    return string.ascii_uppercase[same[0]] if len(same) == 1 and same[0] < len(string.ascii_uppercase) else None
