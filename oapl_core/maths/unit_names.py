r"""Names of units and of counted things: only they may stand behind a number and say nothing about it. Pure.

A list of allowed words, because no list of forbidden ones is ever complete. The words "thousandths", "lakh" and
"reciprocal" change a number, and so do words that nobody thought of. More allowed ones are the statement's own nouns.
"""

import re
from collections.abc import Collection

# Each unit's spelling in verdicts, and the names people give it. One letter is its own case: m is no M.
_NAMES = """
    m: m meter meters metre metres | km: km kms kilometer kilometers kilometre kilometres
    cm: cm cms centimeter centimeters centimetre centimetres | mm: mm millimeter millimeters millimetre millimetres
    dm: dm decimeter decimeters decimetre decimetres | in: in inch inches | ft: ft foot feet | yd: yd yds yard yards
    mi: mi mile miles | g: g gm gram grams | kg: kg kgs kilogram kilograms | mg: mg milligram milligrams
    lb: lb lbs pound pounds | oz: oz ounce ounces | ton: ton tons tonne tonnes
    s: s sec secs second seconds | min: min mins minute minutes | h: h hr hrs hour hours
    d: d day days | week: week weeks | month: month months | yr: yr yrs year years
    decade: decade decades | century: century centuries
    l: l L liter liters litre litres | ml: ml milliliter milliliters millilitre millilitres
    gal: gal gallon gallons | cup: cup cups | pint: pint pints | quart: quart quarts
    tablespoon: tablespoon tablespoons tbsp | teaspoon: teaspoon teaspoons tsp
    mi/h: mph | km/h: kph kmph kmh | degree: degree degrees deg degs | rad: rad rads radian radians
    degree C: celsius | degree F: fahrenheit | acre: acre acres | hectare: hectare hectares | unit: unit units
    n: N newton newtons | j: J joule joules | w: W watt watts | kw: kw kilowatt kilowatts | kwh: kwh
    v: V volt volts | a: A amp amps ampere amperes | hz: hz hertz | k: K kelvin kelvins | pa: pa pascal pascals
    ohm: ohm ohms | mol: mol mole moles | calorie: calorie calories | kcal: kcal | byte: byte bytes
    dollar: dollar dollars usd bucks | cent: cent cents | euro: euro euros eur | gbp: gbp
    yen: yen jpy | rupee: rupee rupees rs inr
"""
UNITS = {
    name: unit.strip()
    for entry in _NAMES.replace("\n", "|").split("|")
    for unit, _, names in [entry.partition(":")]
    for name in names.split()
}
"""The unit that a name stands for."""
_ONE_LETTER = {
    unit: frozenset(name for name in UNITS if UNITS[name] == unit and len(name) == 1) for unit in UNITS.values()
}
# What school problems count. The statement's own nouns are allowed beside these.
_THINGS = """
    adult animal apple bag ball balloon banana bar basket bead bean bike bird block boat book bottle bow box boy bread
    brick bucket button cake candy car card carrot cat chair chicken child children choice class classroom clip coin
    color colour combination cookie corner cow crayon cupcake customer cycle diagonal digit dime dog doll donut dress
    dvd edge egg element employee engine envelope error face factor family fish flower fraction friend fruit game girl
    goal goat guest hat head home horse house integer invitation item kid kite lap leaf leaves leg lemon letter line
    lollipop man marble match meal member men mice mouse movie muffin nail nickel number nut object orange outcome
    outfit page pan paper part party path pea pear pen pencil penny people permutation person phone photo picture pie
    piece pig pizza place plane plant plate player point present prize problem puppy question rabbit rectangle ribbon
    ring robot rock rose row sandwich seat seed sheep sheet shell shirt shoe shot side solution song stamp star step
    sticker stone store story student team test thing ticket tile tomato toy train tree triangle trip truck value
    vegetable vertex vertices vote watermelon way wheel window woman women word worker
"""
# Words beside a counted noun that leave the number alone.
_BESIDE = """
    a an the of in on for each every all total altogether left remaining away ago later long tall wide high deep old
    apart here there now today such different distinct possible whole his her their its our my your as many much often
"""
# Words that change or multiply a number, or offer another: no statement makes things of them, unless it asks how many.
_NUMBER_LIKE = """
    or and not no maybe perhaps probably possibly either neither if else otherwise is are was be equal about
    approximately around roughly nearly almost plus minus over divided by less more fewer than at least most under
    above below between to from off up down half halves third quarter fourth fifth sixth seventh eighth ninth tenth
    eleventh twelfth dozen score gross pair couple double triple quadruple twice thrice zero one two three four five six
    seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen twenty thirty forty
    fifty sixty seventy eighty ninety hundred thousand million billion trillion lakh crore hundredth thousandth
    millionth billionth twentieth negative positive infinity infinite pi percent percentage root factorial power
    exponent square cube squared cubed doubled tripled halved quadrupled reciprocal inverse opposite negated absolute
    wrong incorrect right correct true false unless but rather instead alternatively guess option dot mod modulo modulus
    remainder base logarithm log sine cosine tangent sum difference product quotient added subtracted multiplied
"""
_THINGS_IF_PLURAL = frozenset({"pairs", "quarters", "dots", "options", "roots", "bases", "squares", "cubes", "powers"})
"""Numbers in the singular; things, where the statement has them in the plural as well."""


def singular(name: str) -> str:
    """Return a word in small letters, one form for its singular and its plural."""
    name = name.lower()
    if len(name) > 4 and name.endswith(("ie", "ies")):
        return name[: name.rindex("ie")] + "y"
    if name.endswith(("xes", "zes", "ches", "shes", "sses", "atoes")):
        return name[:-2]
    return name[:-1] if len(name) > 3 and name.endswith("s") and not name.endswith(("ss", "us", "is")) else name


_ALLOWED, _SILENT, _NUMBERS = (frozenset(map(singular, text.split())) for text in (_THINGS, _BESIDE, _NUMBER_LIKE))


def letters_of(unit: str) -> frozenset[str]:
    """Return the names of one letter that a unit such as "l" or "km/h" is written with."""
    return frozenset(letter for part in re.findall("[a-z]+", unit) for letter in _ONE_LETTER.get(part, ()))


def counted(names: list[str], words: Collection[str], asked: Collection[str], is_trusted: bool) -> str | None:
    """Return the counted thing, as "#" and its words in the singular; None if a word could change the number.

    `words` and `asked` are those of the statement. A gold `is_trusted`: what it counts is on no list.
    """
    stems = [singular(name) for name in names]
    for number, (name, stem) in enumerate(zip(names, stems, strict=True)):
        if stem in _SILENT or stem == "time" or (stem in asked and len(stem) > 2):
            continue
        # "third runners": a number's name that the statement has beside the noun belongs to the noun.
        is_part = any(f"{stem} {noun}" in words and noun not in _NUMBERS for noun in stems[number + 1 : number + 2])
        is_way = stem == "to" and number > 0 and stems[number - 1] == "way"  # "ways to choose"
        if is_part or is_way or (name.lower() in _THINGS_IF_PLURAL and name.lower() in words):
            continue
        is_known = is_trusted or stem in _ALLOWED or name.lower() in UNITS or (len(stem) > 2 and stem in words)
        if not is_known or not _NUMBERS.isdisjoint(map(singular, (stem, *stem.split("-")))):
            return None
    return "#" + " ".join(stem for stem in stems if stem not in _SILENT)


def without_silent(names: list[str]) -> list[str]:
    """Return a unit's words without those that may stand behind it: "meters tall", "hours later"."""
    kept = list(names)
    while len(kept) > 1 and singular(kept[-1]) in _SILENT:
        kept.pop()
    return kept
