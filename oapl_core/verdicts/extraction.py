r"""What in a response counts as its answer: the last fenced program, or the last \boxed{} expression."""

import re

MAX_MATHS_CHARACTERS = 512
_OPENING = re.compile(r"^[ \t]*```[ \t]*([\w+-]*)[ \t]*$")
_CLOSING = re.compile(r"^[ \t]*```[ \t]*$")
_LANGUAGES = ("", "python", "python3", "py")
_BOXED = re.compile(r"\\boxed\s*\{")


def final_part(response: str) -> str:
    """What follows the reasoning: the text after the last ``</think>``; nothing if ``<think>`` was never closed."""
    _, mark, after = response.rpartition("</think>")
    if mark:
        return after
    return "" if "<think>" in after else after


def program(response: str) -> str | None:
    """Content of the last closed code block whose fence says python, py or nothing; None without one."""
    found, lines, accepted = None, list[str](), None
    for line in final_part(response).split("\n"):
        if accepted is None:
            opening = _OPENING.match(line)
            if opening:
                accepted, lines = opening[1].lower() in _LANGUAGES, []
        elif _CLOSING.match(line):
            if accepted and any(part.strip() for part in lines):
                found = "\n".join(lines) + "\n"
            accepted = None
        else:
            lines.append(line)
    return found


def maths(response: str) -> str | None:
    r"""Content of the last \boxed{} that is not empty, has balanced braces and at most 512 characters; else None."""
    text = final_part(response)
    for match in reversed(list(_BOXED.finditer(text))):
        content = _balanced(text, match.end())
        if content is not None and content.strip():
            return content.strip()
    return None


def _balanced(text: str, start: int) -> str | None:
    r"""Text from `start` to the brace that closes it, if that is near; a brace after a backslash is a character."""
    depth, position, end = 1, start, min(len(text), start + MAX_MATHS_CHARACTERS + 1)
    while position < end:
        character = text[position]
        if character == "\\":
            position += 1
        elif character == "{":
            depth += 1
        elif character == "}":
            depth -= 1
            if depth == 0:
                return text[start:position]
        position += 1
    return None
