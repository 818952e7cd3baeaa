r"""Units of maths answers: what stands behind a number and is not part of it. Pure.

A unit may be left out or added, but a different one than the gold's makes the answer wrong; nothing is converted. Words
that are no unit are taken for the thing that is counted ("5 apples") if they cannot change the number.
"""

import re
from dataclasses import dataclass

from oapl_core.verdicts.maths_text import plain

# Each unit's spelling in verdicts, and the names people give it.
_NAMES = """
    m: m meter meters metre metres | km: km kms kilometer kilometers kilometre kilometres
    cm: cm cms centimeter centimeters centimetre centimetres | mm: mm millimeter millimeters millimetre millimetres
    in: in inch inches | ft: ft foot feet | yd: yd yds yard yards | mi: mi mile miles
    g: g gm gram grams | kg: kg kgs kilogram kilograms | mg: mg milligram milligrams
    lb: lb lbs pound pounds | oz: oz ounce ounces | ton: ton tons tonne tonnes
    s: s sec secs second seconds | min: min mins minute minutes | h: h hr hrs hour hours
    d: day days | week: week weeks | month: month months | yr: yr yrs year years
    l: l liter liters litre litres | ml: ml milliliter milliliters millilitre millilitres
    gal: gal gallon gallons | cup: cup cups | pint: pint pints | quart: quart quarts
    mi/h: mph | km/h: kph kmph kmh | degree: degree degrees deg degs | rad: rad rads radian radians
    degree C: celsius | degree F: fahrenheit | acre: acre acres | hectare: hectare hectares | unit: unit units
    n: n newton newtons | j: j joule joules | w: w watt watts | v: v volt volts | a: a amp amps | hz: hz hertz
    ohm: ohm ohms | dollar: dollar dollars usd bucks | cent: cent cents | euro: euro euros eur | gbp: gbp
    yen: yen jpy | rupee: rupee rupees rs inr
"""
_UNITS = {
    name: unit.strip()
    for entry in _NAMES.replace("\n", "|").split("|")
    for unit, _, names in [entry.partition(":")]
    for name in names.split()
}
_POWERS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}
_RAISED = {"squared": 2, "cubed": 3}
_SCALES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_SIGNS = {"$": "dollar", "€": "euro", r"\euro": "euro", "£": "gbp", r"\pounds": "gbp", "¥": "yen"}
_SIGNS |= {r"\$": "dollar", "₹": "rupee", "¢": "cent"}
_SIGN = re.compile(r"\\\$|[$€£¥₹¢]|\\(?:euro|pounds)(?![a-zA-Z])(?:\{\})?")
# Words that change or multiply the number, or offer another: never the name of what is counted.
_NEVER_COUNTED = """
    or and not maybe perhaps probably possibly either neither if else otherwise is are was be equals equal about
    approximately around roughly nearly almost plus minus times over divided by less more than at least most under
    above below between to from off half halves third thirds quarter quarters fourth fifth tenth dozen score gross
    pair pairs double triple twice zero one two three four five six seven eight nine ten eleven twelve twenty thirty
    forty fifty sixty seventy eighty ninety hundred thousand million billion trillion hundredth hundredths thousandth
    tenths negative positive infinity pi percent per root factorial power exponent wrong incorrect unless but rather
    instead alternatively guess option options dots mod modulo remainder base e i x y z n
"""
_NEVER = frozenset(_NEVER_COUNTED.split())
_TEXT = re.compile(r"\\text\s*\{([^{}]*)\}")
_TEXT_TAIL = re.compile(r"(?:\\text\s*\{[^{}]*\}|[\s/^{}\d*-]|\\cdot(?![a-zA-Z])|\\times(?![a-zA-Z]))+$")
_TEXT_FRACTION = re.compile(r"\\frac\s*\{\s*\\text\s*\{([^{}]*)\}\s*\}\s*\{\s*\\text\s*\{([^{}]*)\}((?:\^\d)?)\s*\}")
_BARE_TAIL = re.compile(
    r"(?<=[\d})])( ?)((?<![a-zA-Z])[A-Za-z][A-Za-z /.^{}23-]*)$|(?<=\\pi)( )([A-Za-z][A-Za-z /.]+)$"
)
_WORD = re.compile(r"[A-Za-z][a-z-]*|[A-Z]+")
_FACTOR = re.compile(r"([A-Za-z]+)(?:\^?\{?(-?\d)\}?)?")
_TRIGONOMETRY = re.compile(r"\\?(?:arc)?(?:sin|cos|tan|cot|sec|csc)(?![a-z])")
_DEGREE = re.compile(r"\^\\circ\s*(?:(?:\\text\s*\{\s*)?([CF])(?![a-zA-Z])(?:\s*\})?)?")
_PERCENT = re.compile(r"\s*(?:\\?%|\\text\s*\{\s*(?:\\?%|percent|per cent)\s*\}|(?<=[\d} ])percent)\s*$")
_OWN_LETTERS = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z]")
_COMMAND = re.compile(r"\\(?:text\{[^{}]*\}|[a-zA-Z]+)")


@dataclass(frozen=True)
class SplitAnswer:
    """A gold or an answer, taken apart: its plain text, the text without unit, and the unit."""

    text: str
    rest: str
    unit: str

    @classmethod
    def of(cls, text: str, has_words: bool, has_letters: bool) -> "SplitAnswer":
        """The content of a box; for the other two see `split_unit`."""
        text = plain(text)
        rest, unit = split_unit(text, has_words, has_letters)
        return cls(text, plain(rest) if unit else rest, unit)

    @property
    def has_letters(self) -> bool:
        """Whether variables stand in it."""
        return bool(_OWN_LETTERS.search(_COMMAND.sub(" ", self.rest)))


def split_unit(text: str, has_words: bool = False, has_letters: bool = False) -> tuple[str, str]:
    r"""A plain answer as (what is left, its unit or ""). Units of several kinds are joined: "\$5 \text{ per hour}".

    Without \text, a letter or a word may be variables: `has_words` takes a word of four letters and more after a space
    for what is counted, `has_letters` a single letter after a space for a unit ("5 m").
    """
    text, money = _without_signs(text)
    percent = _PERCENT.search(text)
    if percent:
        return text[: percent.start()].strip(), "percent"
    text, degree = _without_degrees(text)
    text, tail = _split_tail(text, has_words, has_letters, bool(money))
    named = [unit for unit in (money, degree) if unit]
    if tail.startswith("/") and named:
        return text, named[0] + tail
    # "$5 dollars" names its unit twice.
    return text, " ".join(named if tail in ("", *named) else [*named, tail])


def agree(gold: str, answer: str) -> bool:
    """Whether the units do not contradict: one is missing, they are equal, or one names the counted thing shorter."""
    if not gold or not answer or gold == answer:
        return True
    if not gold.startswith("#") or not answer.startswith("#"):
        return False
    ours, theirs = set(gold[1:].split()), set(answer[1:].split())
    return ours <= theirs or theirs <= ours


def _without_signs(text: str) -> tuple[str, str]:
    signs = {_SIGNS[match[0].removesuffix("{}")] for match in _SIGN.finditer(text)}
    return (_SIGN.sub("", text).strip(), signs.pop()) if len(signs) == 1 else (text, "")


def _without_degrees(text: str) -> tuple[str, str]:
    """Degrees are a unit, except inside of an expression with an angle's function, where they are a factor."""
    if "\\circ" not in text or _TRIGONOMETRY.search(text):
        return text, ""
    letters = {match[1] for match in _DEGREE.finditer(text)}
    unit = "degree" if letters == {None} else f"degree {next((x for x in letters if x), '')}"
    return _DEGREE.sub(" ", text).strip(), unit


def _split_tail(text: str, has_words: bool, has_letters: bool, is_money: bool) -> tuple[str, str]:
    """The words at the end of an answer, as a unit or as what is counted; the text as it is where they are neither."""
    if "\\text" in text:
        text = _TEXT_FRACTION.sub(r"\\text{\1/\2\3}", text)
        tail = _TEXT_TAIL.search(text)
        start = text.find("\\text", tail.start()) if tail else -1
        if start <= 0 or not text[:start].strip(" {"):  # words without a number before them are the answer itself
            return text, ""
        words = _TEXT.sub(lambda part: f" {part[1].strip()}", text[start:])
    else:
        bare = _BARE_TAIL.search(text)
        if not bare or not _is_bare_unit(bare[2] or bare[4], bool(bare[1] or bare[3]), has_words, has_letters):
            return text, ""
        words, start = bare[2] or bare[4], bare.start()
    head, words = _scaled(text[:start].strip(), words)
    unit = (_unit(words, is_money) or _counted(words)) if words else ""
    # After "=" stands the answer: in "x = 5 m" the head ends in 5, in "area = m" the words are no unit of anything.
    return (text, "") if unit is None or head.endswith("=") else (head, unit)


def _is_bare_unit(words: str, is_apart: bool, has_words: bool, has_letters: bool) -> bool:
    first = words.split("/")[0].split()[0].split("^")[0].lower() if words.strip(" /") else ""
    if first in _SCALES:
        return True
    is_unit = _unit(words, False) is not None
    if len(words) == 1:
        return is_unit and is_apart and has_letters
    # "5 apples" counts, "5 abc" may be a product: shorter words are left to the parser.
    return is_unit or (has_words and is_apart and len(first) >= 4 and _counted(words) is not None)


def _scaled(head: str, words: str) -> tuple[str, str]:
    r"""("5", "million dollars") as ("(5)\cdot 10^{6}", "dollars")."""
    first, _, rest = words.strip().partition(" ")
    if first.lower() not in _SCALES or "=" in head:
        return head, words.strip()
    return f"({head})\\cdot 10^{{{_SCALES[first.lower()]}}}", rest.strip()


def _unit(words: str, is_money: bool) -> str | None:
    """The one spelling of a unit: "kilometers per hour" is "km/h"; None if it is none."""
    words = re.sub(r"\\cdot|\\times|[*{}.]", lambda match: " " if match[0] not in "{}." else "", words)
    parts = [part.split() for part in re.sub(r"\bper\b|\ban?\b(?=\s)", "/", words).replace("//", "/").split("/")]
    if is_money and not parts[0] and len(parts) == 2:  # "$5 per hour": the sign is the unit's first half
        named = _product(parts[1])
        return named and "/" + named
    products = [_product(part) for part in parts]
    return None if not all(products) else "/".join(product or "" for product in products)


def _product(names: list[str]) -> str | None:
    """Units side by side, with their powers: "square m" is "m^2"."""
    units, power = list[str](), 1
    for name in names:
        factor = _FACTOR.fullmatch(name)
        unit = factor and _UNITS.get(factor[1].lower())
        if name.lower() in _POWERS:
            power = _POWERS[name.lower()]
        elif name.lower() in _RAISED and units:
            units[-1] += f"^{_RAISED[name.lower()]}"
        elif unit and factor:
            power, exponent = 1, int(factor[2] or power)
            units.append(unit if exponent == 1 else f"{unit}^{exponent}")
        else:
            return None
    return " ".join(units) or None


def _counted(words: str) -> str | None:
    """What is counted, as "#" and its words in the singular; None if a word could change the number."""
    names = words.split()
    if not 1 <= len(names) <= 4 or not all(_WORD.fullmatch(name) for name in names):
        return None
    lowered = [name.lower() for name in names]
    if not _NEVER.isdisjoint(part for name in lowered for part in name.split("-")):
        return None
    return "#" + " ".join(re.sub(r"(?<=[a-z]{2})(?:ies|es|s|y)$", "", name) for name in lowered)
