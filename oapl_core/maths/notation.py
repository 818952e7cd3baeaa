r"""Notations with a second spelling, brought into the one that the parser reads: {12 \choose 5}, 3.2e-4, P(3,-4). Pure.

Each is one that people write and that can mean nothing else in the content of a box.
"""

import re

_BOLD = re.compile(r"(?:\*\*|__)\s*(.+?)\s*(?:\*\*|__)(\.?)|\*\s*([^*]+?)\s*\*(\.?)", re.DOTALL)
_CHOOSE = re.compile(r"\{([^{}]*)\\choose(?![a-zA-Z])([^{}]*)\}")
# 2e-1 may be 2e - 1; a decimal point, a 1 or a second digit of the exponent says that e is ten to the power.
_SCIENTIFIC = re.compile(
    r"(?<![\w.}])(\d+\.\d+|1(?=[eE])|\d+(?=[eE][+-]?\d\d)|\d+(?=E[+-]))[eE]([+-]?\d{1,3})(?![\w.])"
)
_NATURAL = re.compile(r"\\log\s*_\s*(?:e(?![a-zA-Z])|\{\s*e\s*\})")
_WITHOUT = re.compile(
    r"(\\mathbb\{[RZNQC]\}|(?<![\\a-zA-Z])[RZNQC])\s*(?:-|\\backslash(?![a-zA-Z])|\\smallsetminus(?![a-zA-Z]))\s*(?=\\\{)"
)
# {x | x >= 1} describes by a condition on reals; of integers it is no interval.
_BUILDER = re.compile(
    r"\\\{\s*([a-zA-Z])\s*(?:\\in\s*(?:\\mathbb\{R\}|R)\s*)?(?:\\mid(?![a-zA-Z])|\\vert(?![a-zA-Z])|[:|])\s*(.*?)\s*\\\}",
    re.DOTALL,
)
# ]0,1[ has its ends outside; no bracket may stand inside, as that of a root does.
_INTERVAL = r"\s*[\[\](]([^\[\](),]+),([^\[\](),]+)[\[\])]\s*"
_INTERVALS = re.compile(rf"(?:[a-zA-Z]\s*\\in)?{_INTERVAL}(?:\\cup{_INTERVAL})*")
_OUTWARDS = re.compile(_INTERVAL)
_POINT = re.compile(r"[A-Z](?:_\{?\w+\}?)?\s*(\([^()]*,[^()]*\))")


def emphasised(text: str) -> str:
    """Return an answer without the marks that make all of it bold or slanted in Markdown."""
    found = _BOLD.fullmatch(text)
    return found[1] or found[3] if found and "**" not in (found[1] or "") else text


def one_notation(text: str) -> str:
    """Return a text of plain LaTeX with these notations in the parser's own."""
    if "choose" in text:
        text = _CHOOSE.sub(r"\\binom{\1}{\2}", text)
    if "e" in text or "E" in text:
        text = _SCIENTIFIC.sub(_power_of_ten, text)
    if "log" in text:
        text = _NATURAL.sub(r"\\ln ", text)
    if "\\{" in text:
        text = _WITHOUT.sub(r"\1\\setminus ", text)
        built = _BUILDER.fullmatch(text)
        text = built[2] if built and re.search(r"[<>=]|\\(?:leq|geq|neq)", built[2]) else text
    if "," in text and ("]" in text or "[" in text) and _INTERVALS.fullmatch(text):
        text = _OUTWARDS.sub(_inwards, text)
    if "," in text and text[:1].isupper():
        point = _POINT.fullmatch(text)
        text = point[1] if point else text
    return text


def _inwards(found: re.Match[str]) -> str:
    """Return ]a,b[ as (a,b); each end by itself."""
    opening, closing = found[0].strip()[0], found[0].strip()[-1]
    return f"{'(' if opening == ']' else opening}{found[1]},{found[2]}{')' if closing == '[' else closing}"


def _power_of_ten(found: re.Match[str]) -> str:
    return f"{found[1]}\\times 10^{{{int(found[2])}}}"
