r"""Answer of a response that is no program, by the rule `verifier.answer`: by default its last \boxed{} expression."""

import re
from typing import TYPE_CHECKING

from oapl_core.maths.brackets import closing
from oapl_core.verdicts.extraction import final_part

if TYPE_CHECKING:  # a worker that reads maths must start without the settings' library
    from oapl_core.settings.verifier import AnswerRule

MAX_MATHS_CHARACTERS = 512
_HASH = "####"
# A sign belongs to it unless it stands behind what it would be taken from; commas divide it into thousands.
_NUMBER = re.compile(r"(?:(?<![\w)\]}])[-−])?(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+)")
_BOXED = re.compile(r"\\boxed\s*\{")
_NEAR = 64
# A box that shows nothing: spaces of TeX, empty braces.
_BLANK = re.compile(r"(?:[\s~{}$]|\\[,;:!> ]|\\(?:q?quad|enspace|thinspace|null)(?![a-zA-Z]))*")
# What stands between the boxes of one list: signs, "and", "or", and the name of the next value ("y =").
_IN_A_ROW = re.compile(
    r"(?:[\s$,;&{}]|\\[()\[\],; \\]|\\(?:text|q?quad)(?![a-zA-Z])|(?<![a-zA-Z])(?:and|or)(?![a-zA-Z])"
    r"|(?<![a-zA-Z])[a-zA-Z](?:_\{?\d\}?)?\s*=)*"
)


def maths_by(rule: "AnswerRule", response: str, is_thinking: bool = False) -> str | None:
    """Return a response's answer by `verifier.answer`, but for a regular expression, which may take for ever."""
    if rule == "last-box":
        return maths(response, is_thinking)
    text = final_part(response, is_thinking)
    if rule == "first-box":
        return _first_box(text)
    if rule == "whole":
        return short(text)
    if rule == "number":
        numbers = _NUMBER.findall(text)
        return short(numbers[-1] if numbers else None)
    _, _, after = text.partition(rule["after"] if isinstance(rule, dict) else _HASH)
    line = after.partition("\n")[0].strip()
    # "**The answer is 5.**": the marks around the sentence are not the answer's, and one of two is left of them.
    return short(re.sub(r"^\*\*|\*\*\.?$", "", line) if line.count("**") == 1 else line)


def matched(pattern: str, text: str) -> str | None:
    """Return a regular expression's first match, or its first group; runs where it can be ended (maths_pool.py)."""
    match = re.search(pattern, text)
    return short(match[min(1, match.re.groups)] if match else None)


def short(answer: str | None) -> str | None:
    """Return an answer that is neither empty nor longer than any is."""
    answer = (answer or "").strip()
    return answer if 0 < len(answer) <= MAX_MATHS_CHARACTERS else None


def _first_box(text: str) -> str | None:
    """Return the content of the first box, or of the boxes in a row that begin with it."""
    contents, end = list[str](), 0
    for match in _BOXED.finditer(text):
        close = closing(text[: match.end() + MAX_MATHS_CHARACTERS + 1], match.end(), "{}")
        if close is None or _BLANK.fullmatch(text, match.end(), close):
            continue
        if contents and not (0 <= match.start() - end <= _NEAR and _IN_A_ROW.fullmatch(text, end, match.start())):
            break
        contents.append(text[match.end() : close].strip())
        end = close + 1
    return short(", ".join(dict.fromkeys(contents)))


def maths(response: str, is_thinking: bool = False) -> str | None:
    r"""Return the content of the last \boxed{} that is not empty and has balanced braces; None without one.

    A last box of more than 512 characters is no answer, and no earlier box is one in its place. Boxes in a row, as in
    "\boxed{3} and \boxed{5}", are one answer, the list of them: none of several guesses counts alone.
    """
    text = final_part(response, is_thinking)
    contents, first = list[str](), len(text)
    for match in reversed(list(_BOXED.finditer(text))):
        # Only so far: a response may open a thousand boxes, and each would be searched to its end.
        close = closing(text[: match.end() + MAX_MATHS_CHARACTERS + 1], match.end(), "{}")
        content = None if close is None else text[match.end() : close]
        if content is None and len(text) > match.end() + MAX_MATHS_CHARACTERS:
            break  # too long, whether it ends or not
        if content is None or _BLANK.fullmatch(content):
            continue
        end = match.end() + len(content) + 1
        if contents and not (0 <= first - end <= _NEAR and _IN_A_ROW.fullmatch(text, end, first)):
            break  # words between two boxes: the later is the answer, the earlier a step to it
        contents.insert(0, content.strip())
        first = match.start()
    answer = ", ".join(dict.fromkeys(contents))
    return answer if 0 < len(answer) <= MAX_MATHS_CHARACTERS else None
