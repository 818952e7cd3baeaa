r"""Answer of a response: the last fenced program, or for maths what `verifier.answer` says, by default the last
\boxed{} expression."""

import ast
import re
import warnings
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from oapl_core.maths.brackets import closing

if TYPE_CHECKING:  # a worker that reads maths must start without the settings' library
    from oapl_core.settings.verifier import AnswerRule

MAX_MATHS_CHARACTERS = 512
_HASH = "####"
# A sign belongs to it unless it stands behind what it would be taken from; commas divide it into thousands.
_NUMBER = re.compile(r"(?:(?<![\w)\]}])[-−])?(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+)")
_OPENING = re.compile(r"^[ \t]*(`{3,}|~{3,})(.*)$")
_CLOSING = re.compile(r"^[ \t]*(`{3,}|~{3,})[ \t]*$")
PYTHON = ("python", "python3", "py", "py3")
"""Tags of code blocks with a program in Python."""
_BOXED = re.compile(r"\\boxed\s*\{")
_NEAR = 64
# A box that shows nothing: spaces of TeX, empty braces.
_BLANK = re.compile(r"(?:[\s~{}$]|\\[,;:!> ]|\\(?:q?quad|enspace|thinspace|null)(?![a-zA-Z]))*")
# What stands between the boxes of one list: signs, "and", "or", and the name of the next value ("y =").
_IN_A_ROW = re.compile(
    r"(?:[\s$,;&{}]|\\[()\[\],; \\]|\\(?:text|q?quad)(?![a-zA-Z])|(?<![a-zA-Z])(?:and|or)(?![a-zA-Z])"
    r"|(?<![a-zA-Z])[a-zA-Z](?:_\{?\d\}?)?\s*=)*"
)


def opens_thinking(prompt: str) -> bool:
    """Tell whether a prompt ends inside of ``<think>``, as some chat templates do: the response then only closes it."""
    return prompt.rstrip().endswith("<think>")


def final_part(response: str, is_thinking: bool = False) -> str:
    """Return the text after the reasoning's last ``</think>``; nothing if ``<think>`` was never closed.

    ``is_thinking``: the prompt opened it already.
    """
    _, mark, after = response.rpartition("</think>")
    if mark:
        return after
    return "" if is_thinking or "<think>" in after else after


def program(
    response: str, is_thinking: bool = False, is_cut: bool = False, tags: Collection[str] = PYTHON
) -> str | None:
    """Return the program of a response: its last code block with one of the `tags`, else its last that says nothing.

    Of Python that is the last that says nothing and is code.

    Blocks are CommonMark's (0.31, section 4.5): three or more backticks or tildes, closed by at least as many of the
    same. Words behind the language are passed over. A block that is never closed counts, to the end of the response,
    unless the response `is_cut`. A block without a language that is no program, an example of output say, counts only
    if there is no other. None without any block.
    """
    blocks = [block for block in _blocks(final_part(response, is_thinking), is_cut) if block.text.strip()]
    tagged = [block.text for block in blocks if block.tag in tags]
    untagged = [block.text for block in blocks if not block.tag]
    if tags != PYTHON:
        return next(iter([*tagged[-1:], *untagged[-1:]]), None)
    candidates = [*tagged[-1:], *[text for text in untagged if _is_code(text)][-1:], *untagged[-1:]]
    return candidates[0] if candidates else None


def fenced(source: str, tag: str = PYTHON[0]) -> str:
    """Return a response whose program is `source`, whatever that contains."""
    fence = "`" * (3 + max(map(len, re.findall("`+", source)), default=0))
    return f"{fence}{tag}\n{source}\n{fence}"


@dataclass(frozen=True)
class _Block:
    tag: str
    text: str


def _blocks(text: str, is_cut: bool) -> list[_Block]:
    """Return every fenced block, in order."""
    blocks, fence, tag, lines = [], "", "", list[str]()
    for line in text.replace("\r\n", "\n").split("\n"):
        if not fence:
            opening = _OPENING.match(line)
            # A backtick after three backticks makes inline code of them (CommonMark 0.31, section 4.5).
            if opening and not (opening[1][0] == "`" and "`" in opening[2]):
                fence, tag, lines = opening[1], _tag(opening[2]), []
        elif (end := _CLOSING.match(line)) and end[1][0] == fence[0] and len(end[1]) >= len(fence):
            blocks.append(_Block(tag, "\n".join(lines) + "\n"))
            fence = ""
        else:
            lines.append(line)
    if fence and not is_cut:
        blocks.append(_Block(tag, "\n".join(lines) + "\n"))
    return blocks


def _tag(info: str) -> str:
    """Read the first word of an info string: `python title="a.py"`, `{.python .numbered}`, `python:main.py`."""
    word = re.match(r"[\s{.]*([\w+#-]*)", info)
    return word[1].lower() if word else ""


def _is_code(text: str) -> bool:
    """Tell whether a text is a Python program that does more than name values, as `5` or `YES` would."""
    try:
        with warnings.catch_warnings(action="ignore"):  # an invalid escape in somebody's text
            body = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return any(not isinstance(node, ast.Expr) or any(isinstance(n, ast.Call) for n in ast.walk(node)) for node in body)


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
