r"""Numbers that people write out: twenty-three for 23, and two units one after the other, 5 feet 3 inches. Pure."""

import re

from oapl_core.maths.unit_names import UNITS

_UNITS = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"
_SMALL = {name: number for number, name in enumerate(f"{_UNITS} seventeen eighteen nineteen".split())}
_TENS = {
    name: 10 * number for number, name in enumerate("twenty thirty forty fifty sixty seventy eighty ninety".split(), 2)
}
_SCALES = {"thousand": 10**3, "million": 10**6, "billion": 10**9}
_TEXT = re.compile(r"\\text\s*\{([^{}]*)\}")
_WORDS = re.compile(r"[a-z]+(?:(?:\s*-\s*|\s+|,\s+)[a-z]+)*")
_LONGEST = 120
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]+)\.?(?:\s*,?\s*(?:and\s+)?(?=\d)|\s*$)")


def number_in_words(text: str) -> int | None:
    r"""Read the number that an answer of words alone names, from 0 on: twenty-three, \text{Two hundred and five}."""
    words = _TEXT.sub(r" \1 ", text).strip().removesuffix(".").lower()
    if len(words) > _LONGEST or not _WORDS.fullmatch(words):
        return None
    names = re.split(r"[\s,-]+", words)
    total, largest = 0, min(_SCALES.values()) * 10**9
    group = list[str]()
    for name in names:
        if name in _SCALES:
            value = _below_thousand(group)
            if not value or _SCALES[name] >= largest:
                return None
            total, largest, group = total + value * _SCALES[name], _SCALES[name], []
        else:
            group.append(name)
    rest = _below_thousand(group[1:] if total and group[:1] == ["and"] else group) if group else 0
    return None if rest is None else total + rest


def _below_thousand(names: list[str]) -> int | None:
    """Return the value of one to five words without a thousand: two hundred and five."""
    if "hundred" in names:
        before, after = names[: names.index("hundred")], names[names.index("hundred") + 1 :]
        after = after[1:] if after[:1] == ["and"] and len(after) > 1 else after
        hundreds = _SMALL.get(before[0], 0) if len(before) == 1 else 0
        rest = _below_hundred(after) if after else 0
        return None if not 1 <= hundreds <= 9 or rest is None else 100 * hundreds + rest
    return _below_hundred(names)


def _below_hundred(names: list[str]) -> int | None:
    if len(names) == 1:
        return _SMALL.get(names[0], _TENS.get(names[0]))
    digit = _SMALL.get(names[1], 0) if len(names) == 2 else 0
    return _TENS[names[0]] + digit if names[:1] and names[0] in _TENS and 1 <= digit <= 9 else None


def measures(text: str) -> tuple[tuple[str, str], ...] | None:
    """Return (number, unit) of each part of a plain answer in two units or more, each once; None for all else."""
    bare = _TEXT.sub(r" \1 ", text).strip()
    if len(bare) > _LONGEST:
        return None
    parts, at = list[tuple[str, str]](), 0
    while found := _PART.match(bare, at):
        unit = UNITS.get(found[2] if len(found[2]) == 1 else found[2].lower())
        if unit is None:
            return None
        parts.append((found[1], unit))
        at = found.end()
    is_whole = at == len(bare) and len(parts) > 1 and len({unit for _, unit in parts}) == len(parts)
    return tuple(parts) if is_whole else None
