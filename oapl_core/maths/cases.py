r"""Functions by cases: \begin{cases} x & x < 0 \\ ... \end{cases}, as rows of a value and its condition. Pure.

The parser cannot read them, and people part the two by &, a comma, "if" or several of these.
"""

import re

_CASES = re.compile(
    r"(?P<name>[^=]*=)?\s*(?:\\\{\s*)?\\begin\{(?:d|r)?cases\}(?P<rows>.*)\\end\{(?:d|r)?cases\}", re.DOTALL
)
_IF = r"(?:if|for|when|where)"
_PARTED = re.compile(
    rf"[,;]?\s*&\s*[,;]?|[,;]?\s*(?:\\text\s*\{{\s*[,;]?\s*{_IF}\s*\}}|(?<![a-zA-Z\\]){_IF}(?![a-zA-Z]))"
)
_LEAD = re.compile(rf"^(?:[\s,;]|\\text\s*\{{\s*[,;]?\s*{_IF}?\s*\}}|{_IF}(?![a-zA-Z]))+|[\s,;.]+$")
_OTHERWISE = re.compile(r"(?:\\text\s*\{\s*)?(?:otherwise|else|elsewhere)\.?\s*\}?", re.IGNORECASE)
_TEXT_IF = re.compile(rf"\\text\s*\{{\s*{_IF}\s+([^{{}}]*)\}}")

_OPPOSITES = {"<": "\\geq ", ">": "\\leq ", "\\leq": ">", "\\geq": "<", "=": "\\neq ", "\\neq": "="}
_RELATION = re.compile(r"[<>=]|\\(?:leq|geq|neq)(?![a-zA-Z])")


def rows(text: str) -> list[tuple[str, str]] | None:
    """Return (value, condition) of each case, "" for otherwise; None if the answer is no function by cases."""
    found = _CASES.fullmatch(text.strip()) if "cases}" in text else None
    if found is None:
        return None
    cases = []
    for line in re.split(r"\\\\", found["rows"]):
        if not line.strip(" ,;."):
            continue
        line = _TEXT_IF.sub(r"\\text{if} \1", line)
        value, _, condition = (_PARTED.sub("&", line, count=1) if _PARTED.search(line) else _by_comma(line)).partition(
            "&"
        )
        condition = _LEAD.sub("", condition.replace("&", " "))
        if not condition:
            return None
        cases.append((_LEAD.sub("", value), "" if _OTHERWISE.fullmatch(condition) else condition))
    return cases or None


def spelt_out(two: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return two cases with "otherwise" as the opposite of the other's condition, where that is one relation."""
    (one, first), (other, second) = two
    return [(one, first or _opposite(second)), (other, second or _opposite(first))]


def _opposite(condition: str) -> str:
    signs = _RELATION.findall(condition)
    return _RELATION.sub(lambda found: _OPPOSITES[found[0]], condition) if len(signs) == 1 else ""


def _by_comma(line: str) -> str:
    return re.sub(r",(?=[^,]*$)", "&", line)
