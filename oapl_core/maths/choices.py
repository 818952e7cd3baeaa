r"""Choices of a question: (C), C with what stands behind it, or several of them, by their letters. Pure."""

import re

_LABEL = re.compile(
    r"(?:\\text\s*\{\s*)?(?:\(\s*([A-J])\s*\)|([A-J])[.):](?=[\s}\\]))\s*\}?[:.]?\s*(?![+*/^=,&<>(])(\S.*)", re.DOTALL
)
_OTHER = re.compile(
    r"\([A-J]\)|(?<![a-zA-Z])(?:or|and|not|maybe|perhaps|either|neither|but|wrong|incorrect)(?![a-zA-Z])"
    # What has a verb says something of the choice; a value has none in front.
    r"|^(?:\\text\s*\{)?\s*(?:is|isn|are|aren|was|wasn|can|cannot|could|would|should|seems|looks|fails)(?![a-zA-Z])",
    re.IGNORECASE,
)
_SETTING = re.compile(r"\\text(?![a-zA-Z])|[{}()\s]")
_SEVERAL = re.compile(r"[A-J](?:(?:,|;|&|\\&|,?and)[A-J])+")
_RUN = re.compile(r"[A-J]{2,10}")


def labelled(text: str) -> tuple[str, str] | None:
    r"""Return (letter, value) of a plain answer such as (C) 12, as \textbf{(C)}\ 12 becomes; None for all else."""
    found = _LABEL.fullmatch(text)
    return None if found is None or _OTHER.search(found[3]) else (found[1] or found[2], found[3])


def is_choice(text: str) -> bool:
    """Tell whether a plain answer is a single letter of a choice, in parentheses or not."""
    return len(text) <= 20 and re.fullmatch("[A-J]", _SETTING.sub("", text)) is not None


def several(text: str) -> frozenset[str] | None:
    """Return the letters of a list of choices: A, C, D or (A) and (C); None for all else."""
    letters = _SETTING.sub("", text)
    return frozenset(re.findall("[A-J]", letters)) if len(text) <= 200 and _SEVERAL.fullmatch(letters) else None


def run(text: str) -> frozenset[str] | None:
    """Return the letters of choices without anything between them, ACD; None for all else, and for a double letter."""
    letters = _SETTING.sub("", text)
    is_run = len(text) <= 40 and _RUN.fullmatch(letters) and len(set(letters)) == len(letters)
    return frozenset(letters) if is_run else None
