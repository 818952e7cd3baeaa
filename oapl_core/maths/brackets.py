"""Brackets of LaTeX: where one ends. Apart from text.py, because who looks for a box needs nothing else. Pure."""

import re


def closing(text: str, start: int, brackets: str) -> int | None:
    """Find the bracket that closes the one before `start`; None without. After a backslash it is a character."""
    depth = 1
    for sign in re.compile(rf"\\.|[{re.escape(brackets)}]", re.DOTALL).finditer(text, start):
        depth += {brackets[0]: 1, brackets[1]: -1}.get(sign[0], 0)
        if depth == 0:
            return sign.start()
    return None
