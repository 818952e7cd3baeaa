r"""Typography of maths answers: two texts that differ only in how they are set become one text. Pure and cheap.

Reads the content of a box (LaTeX, or what people type instead), returns plainer LaTeX for math-verify's parser. Changes
how something is written, never what it says: no number is computed except those that have a second spelling (repeating
decimals). docs/maths.md lists the rules with examples.
"""

import re
import unicodedata
from collections.abc import Callable

_SIGNS = {
    "−": "-",
    "–": "-",
    "—": "-",
    "‐": "-",
    "‑": "-",
    "×": r"\times ",
    "·": r"\cdot ",
    "⋅": r"\cdot ",
    "÷": r"\div ",
    "∗": "*",
    "π": r"\pi ",
    "θ": r"\theta ",
    "α": r"\alpha ",
    "β": r"\beta ",
    "λ": r"\lambda ",
    "φ": r"\phi ",
    "∞": r"\infty ",
    "≤": r"\leq ",
    "⩽": r"\leq ",
    "≥": r"\geq ",
    "⩾": r"\geq ",
    "≠": r"\neq ",
    "≈": r"\approx ",
    "±": r"\pm ",
    "∪": r"\cup ",
    "∩": r"\cap ",
    "∈": r"\in ",
    "∅": r"\emptyset ",
    "ℝ": r"\mathbb{R}",
    "ℤ": r"\mathbb{Z}",
    "ℕ": r"\mathbb{N}",
    "ℚ": r"\mathbb{Q}",
    "ℂ": r"\mathbb{C}",
    "°": r"^\circ ",
    "º": r"^\circ ",
    "′": "'",
    "’": "'",
    "‘": "'",
    "″": '"',
    "“": '"',
    "”": '"',
    "…": r"\ldots ",
    "½": r"\frac{1}{2}",
    "⅓": r"\frac{1}{3}",
    "⅔": r"\frac{2}{3}",
    "¼": r"\frac{1}{4}",
    "¾": r"\frac{3}{4}",
    "⅕": r"\frac{1}{5}",
    "⅛": r"\frac{1}{8}",
    "⁄": "/",
    "∕": "/",
    "∛": r"\sqrt[3]",
    "⟨": r"\langle ",
    "⟩": r"\rangle ",
    "∠": r"\angle ",
    "∶": ":",
}
_SIGN_TABLE = str.maketrans(_SIGNS)
_RAISED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ", "0123456789+-n")
_LOWERED = str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789")

_SYNONYMS = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\\[dtc]frac(?![a-zA-Z])|\\(?:nice|s)frac(?![a-zA-Z])", r"\\frac"),
        (r"\\[dt]binom(?![a-zA-Z])", r"\\binom"),
        (r"\\(?:left|right|middle|[bB]igg?[lrm]?)(?![a-zA-Z])\.?", ""),
        (r"\\(?:display|text|script|scriptscript)style(?![a-zA-Z])|\\(?:no)?limits(?![a-zA-Z])", " "),
        (r"\\(?:bf|rm|it|sf|tt|bfseries|large|Large|LARGE|huge|Huge|small)(?![a-zA-Z])", " "),
        (r"\\(?:color|hspace\*?|vspace\*?|label|tag\*?)\s*\{[^{}]*\}", " "),
        (r"(?<=\d)\s*,\s*\\!\s*(?=\d{3}(?!\d))", ""),
        (r"(?<=\d)(?:\{,\}|(?<!\\)\\,|~|\\ |\\thinspace|\u202f|\u00a0)(?=\d{3}(?!\d))", ""),
        (r"\\!|\\/", ""),
        (r"(?<!\\)\\[,;:> ]|~|\\(?:q?quad|thinspace|enspace|space)(?![a-zA-Z])", " "),
        (r"\\(?:varnothing|empty)(?![a-zA-Z])|\\\{\s*\\\}", r"\\emptyset "),
        (r"\\mathbb\s*([RZNQC])(?![a-zA-Z])", r"\\mathbb{\1}"),
        (r"\\mathbf\s*\{([RZNQ])\}|\\([RZNQ])(?![a-zA-Z])", r"\\mathbb{\1\2}"),
        (r"\\le(?:qslant)?(?![a-zA-Z])|<=", r"\\leq "),
        (r"\\ge(?:qslant)?(?![a-zA-Z])|>=", r"\\geq "),
        (r"\\ne(?![a-zA-Z])|\\not\s*=|!=", r"\\neq "),
        (r"\\lt(?![a-zA-Z])", "<"),
        (r"\\gt(?![a-zA-Z])", ">"),
        (r"==", "="),
        (r"\*\*", "^"),
        (r"\\(?:ast|star)(?![a-zA-Z])", "*"),
        (r"\\lbrace(?![a-zA-Z])", r"\\{"),
        (r"\\rbrace(?![a-zA-Z])", r"\\}"),
        (r"\\langle(?![a-zA-Z])", "("),
        (r"\\rangle(?![a-zA-Z])", ")"),
        (r"\^\s*\{\s*\\(?:circ|degree)\s*\}|\^\s*\\circ(?![a-zA-Z])", r"^\\circ "),
        (r"\\(?:text)?degree(?![a-zA-Z])", r"^\\circ "),
        (r"\{\s*\^\\circ\s*\}", r"^\\circ "),
        (r"\\[lcvdh]?dots[cbmio]?(?![a-zA-Z])|\.\.\.+", r"\\text{dots}"),
        (r"(?<![a-zA-Z\\])(?:pi|PI|Pi)(?![a-zA-Z])", r"\\pi "),
        (r"(?<![a-zA-Z\\])(?:oo|infinity|inf)(?![a-zA-Z])", r"\\infty "),
        (r"\\lg(?![a-zA-Z])", r"\\log "),
        (r"\\(?:top|intercal|mathsf\{T\}|mathrm\{T\})(?![a-zA-Z])", "T"),
        (r"\\begin\{(?:[bBvV]?|small)matrix\*?\}", r"\\begin{pmatrix}"),
        (r"\\end\{(?:[bBvV]?|small)matrix\*?\}", r"\\end{pmatrix}"),
        (r"[(\[]\s*\\begin\{array\}\s*\{[^{}]*\}(.*?)\\end\{array\}\s*[)\]]", r"\\begin{pmatrix}\1\\end{pmatrix}"),
        (r"\\\\\s*\[[^\]]*\]|\\cr(?![a-zA-Z])", r"\\\\ "),
        (r"\\\\\s*(?=\\end\{)", " "),
    )
]
_DETERMINANT = re.compile(r"\\begin\{vmatrix\}")
_FONTS = re.compile(
    r"\\(?:math(?:rm|bf|it|sf|tt|normal)|boldsymbol|bm|pmb|ensuremath|underline|boxed|fbox|textcolor\s*\{[^{}]*\}"
    r"|text(?:bf|it|rm|sf|tt|up|normal|md)?|mbox|hbox|emph|operatorname\*?)\s*\{"
)
_PLAIN_FONT = re.compile(r"\\(?:math|bold|bm|pmb|ensure|underline|boxed|fbox|textcolor)")
_FUNCTIONS = re.compile(r"\\operatorname")
_NOT_WORDS = re.compile(r"\s*(?:[-+\d.,\s]+|\(\s*[A-Za-z]\s*\))\s*")
_UNIT_LETTERS = re.compile(r"\s*[mgshlLNJWVAK]\s*")
_ONE_LETTER = re.compile(r"\\text\{\s*([A-Za-z])\s*\}")
_LETTERS = re.compile(r"\s*[A-Za-z]{2,}[A-Za-z\s]*")
_PRIMES = re.compile(r"(?<![a-zA-Z\\])([a-zA-Z])(?:\^\s*\{?\s*((?:\\prime\s*)+)\}?|('+))")
_ROOT = re.compile(r"√\s*(\d+(?:\.\d+)?|[a-zA-Z])")
_ROOT_OF = re.compile(r"\\?(?<![a-zA-Z])sqrt\s*(\[[^\]]*\])?\s*\(|√\s*\(")
_REPEATING = re.compile(r"(?<![\d.])(\d*)\.(\d*)(?:\\(?:overline|bar|dot)\s*(?:\{(\d+)\}|(\d))|\((\d+)\)(?![\d(]))")
_MIXED = re.compile(
    r"(?<![\d.)}/^_a-zA-Z])(\d+)(?: *\\frac *(?:\{(\d+)\}|(\d)) *(?:\{(\d+)\}|(\d))| +(\d+) ?/ ?(\d+)(?![\d.^/]))"
)
_SPACED_THOUSANDS = re.compile(r"(?<![\d.,/^_{] )(?<![\d.,/^_])(\d{1,3}(?: \d{3})+)(?![\d/]| \d|,\d)")
_COMMA_THOUSANDS = re.compile(r"((?:^|=)\s*[-+]?\s*)(\d{1,3}(?:,\d{3})+)(?=\.\d|[^\d.,]*$)")
_TRANSPOSED_TUPLE = re.compile(r"\(([^()]*,[^()]*)\)\s*\^\s*(?:T|\{\s*T\s*\})")
_ENDING = re.compile(r"(?:[\s.,;:]|\\text\{\s*[.,;]?\s*\}|\\\\)+$")
_LEADING = re.compile(r"(?:[=:\s]|\\(?:approx|therefore|Rightarrow|implies)(?![a-zA-Z]))+")
_QUOTED = re.compile(r"(?:``|\"|')([^'\"`]*)(?:''|\"|')")
_SPACES = re.compile(r"\s+")


def plain(text: str) -> str:
    """The same answer in plain LaTeX. Any text is accepted; what is no LaTeX stays what it is."""
    text = text.strip()
    if not text.isascii():
        text = _ascii(text)
    text = _without_ending(_without_dollars(text))
    if text.isdecimal():
        return text
    text = _plain_commands(_fonts(text) if "\\" in text else text)
    if "'" in text or '"' in text or "`" in text or "\\prime" in text:
        text = _quotes(text)
    text = _without_ending(_numbers(_SPACES.sub(" ", text)))
    text = _without_start(_ONE_LETTER.sub(r"\1", text) if _ONE_LETTER.fullmatch(text) else text)
    while text[:1] == "{" and _closing(text, 1, "{}") == len(text) - 1:
        text = text[1:-1].strip()
    return text


def compact(text: str) -> str:
    """A plain text without spaces, spare braces and the choice between signs of multiplication: to see sameness."""
    text = re.sub(
        r"(?<!\d)\s|\s(?!\d)|\\cdot(?![a-zA-Z])|\\times(?![a-zA-Z])",
        lambda found: "" if found[0].isspace() else "*",
        text,
    )
    text = re.sub(r"\{([A-Za-z0-9])\}", r"\1", text)
    while text.startswith("(") and text.endswith(")") and _closing(text, 1, "()") == len(text) - 1 and "," not in text:
        text = text[1:-1]
    return text


def _ascii(text: str) -> str:
    text = re.sub(r"[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ]+", lambda found: f"^{{{found[0].translate(_RAISED)}}}", text)
    text = re.sub(r"[₀₁₂₃₄₅₆₇₈₉]+", lambda found: f"_{{{found[0].translate(_LOWERED)}}}", text)
    text = re.sub(r"(?<=\d)[\u00a0\u2009\u202f](?=\d{3}(?!\d))", "", text)
    return unicodedata.normalize("NFKC", _ROOT.sub(r"\\sqrt{\1}", text).translate(_SIGN_TABLE))


def _without_dollars(text: str) -> str:
    """Without the dollar signs that only open and close maths; a single one is a currency."""
    text = re.sub(r"^\\[(\[](.*)\\[)\]]$", r"\1", text, flags=re.DOTALL)
    text = re.sub(r"(?<!\\)\\[()]", "", text)
    if text.count("$") - text.count("\\$") in (2, 4, 6, 8) and not re.match(r"\$\s*[\d.,]+\s*[-–,]\s*\$", text):
        text = re.sub(r"(?<!\\)\$", "", text)
    return text.strip()


def _without_ending(text: str) -> str:
    return _ENDING.sub("", text).strip() if text[-1:] in " .,;:}\\" else text.strip()


def _without_start(text: str) -> str:
    found = _LEADING.match(text)
    return text[found.end() :] if found else text


def _plain_commands(text: str) -> str:
    determinant = _DETERMINANT.search(text) is not None
    for pattern, replacement in _SYNONYMS:
        if not (determinant and "matrix" in replacement):
            text = pattern.sub(replacement, text)
    text = _rewritten(text, _ROOT_OF, "()", lambda opening, inner: f"\\sqrt{_index(opening)}{{{inner}}}")
    if "^" in text and "," in text:
        text = _TRANSPOSED_TUPLE.sub(
            lambda found: "\\begin{pmatrix}" + "\\\\ ".join(found[1].split(",")) + "\\end{pmatrix}", text
        )
    return text


def _index(opening: str) -> str:
    found = re.search(r"\[[^\]]*\]", opening)
    return found[0] if found else ""


def _fonts(text: str) -> str:
    r"""Fonts and frames taken off; of \text what stands for a number, a letter or a choice. Words stay \text{words}."""

    def unwrapped(opening: str, inner: str) -> str:
        if _FUNCTIONS.match(opening):
            return f"\\operatorname{{{inner}}}"
        if _PLAIN_FONT.match(opening):
            is_unit = opening.startswith("\\mathrm") and _UNIT_LETTERS.fullmatch(inner)
            return f"\\text{{{inner}}}" if is_unit or _LETTERS.fullmatch(inner) else f" {inner} "
        return inner if _NOT_WORDS.fullmatch(inner) else f"\\text{{{inner}}}"

    text = re.sub(r"\{\s*\\(?:bf|rm|it|bfseries)\s+([A-Za-z0-9.]+)\s*\}", r"\\text{\1}", text)
    return _rewritten(text, _FONTS, "{}", unwrapped)


def _rewritten(text: str, opening: re.Pattern[str], brackets: str, rewrite: Callable[[str, str], str]) -> str:
    """Text with every `opening`...closing bracket rewritten, innermost first."""
    for match in reversed(list(opening.finditer(text))):
        end = _closing(text, match.end(), brackets)
        if end is not None:
            text = text[: match.start()] + rewrite(match[0], text[match.end() : end]) + text[end + 1 :]
    return text


def _closing(text: str, start: int, brackets: str) -> int | None:
    """Position of the bracket that closes the one before `start`; one after a backslash is a character."""
    depth, position = 1, start
    while position < len(text):
        character = text[position]
        if character == "\\":
            position += 1
        elif character == brackets[0]:
            depth += 1
        elif character == brackets[1]:
            depth -= 1
            if depth == 0:
                return position
        position += 1
    return None


def _quotes(text: str) -> str:
    """Quotation marks around a whole answer go; a prime after a letter becomes part of its name and never vanishes."""
    found = _QUOTED.fullmatch(text)
    if found:
        text = found[1]
    text = _PRIMES.sub(lambda found: f"{found[1]}_{{{'prime' * _count(found)}}}", text)
    return re.sub(r"\^?\s*\{?\\prime(?![a-zA-Z])\}?", "'", text)


def _count(found: re.Match[str]) -> int:
    return found[2].count("\\prime") if found[2] else len(found[3])


def _numbers(text: str) -> str:
    if "." in text:
        text = _REPEATING.sub(_repeating, text)
    if "\\frac" in text or "/" in text:
        text = _MIXED.sub(_mixed, text)
    if " " in text:
        text = _SPACED_THOUSANDS.sub(lambda found: found[1].replace(" ", ""), text)
    if "," in text:
        text = _COMMA_THOUSANDS.sub(lambda found: found[1] + found[2].replace(",", ""), text)
    return text


def _mixed(found: re.Match[str]) -> str:
    """A whole number and a proper fraction behind it as one fraction."""
    whole, above, below = int(found[1]), int(found[2] or found[3] or found[6]), int(found[4] or found[5] or found[7])
    return f"\\frac{{{whole * below + above}}}{{{below}}}" if above < below else found[0]


def _repeating(found: re.Match[str]) -> str:
    """0.1\\overline{6} as the fraction that it is."""
    whole, start, period = found[1] or "0", found[2], found[3] or found[4] or found[5]
    below = (10 ** len(period) - 1) * 10 ** len(start)
    above = int(whole + start + period) - int(whole + start)
    return f"\\frac{{{above}}}{{{below}}}"
