r"""Times of day and dates in maths answers: compared by what they say, in any of the usual spellings. Pure.

"12:30" is also how people write a ratio; only the statement tells, and the name in front of it (V_1:V_2 = 11:21).
"""

import re
from dataclasses import dataclass

_SETTING = re.compile(r"\\(?:text|operatorname)(?![a-zA-Z])|[\\{}$~]")
_SPACES = re.compile(r"\s+")
_TIME = re.compile(
    r"(?:[A-Za-z]+ ?= ?|at )?(\d{1,2})(?: ?(?P<sign>[:.]) ?([0-5]\d))?(?: ?(?P<half>[ap])\.? ?m\.?| (?:o'clock|hours))?"
    r"(?: (?:in the (?P<part>morning|afternoon|evening)|at (?P<night>night)))?",
    re.IGNORECASE,
)
_NOON = {"noon": 12 * 60, "12 noon": 12 * 60, "midnight": 0, "12 midnight": 0}
_MONTHS = {
    name: number
    for number, month in enumerate(
        "january february march april may june july august september october november december".split(), 1
    )
    for name in (month, month[:3])
} | {"sept": 9}
_MONTH = "|".join(sorted(_MONTHS, key=len, reverse=True))
_YEAR = r"(?:,? ?(?P<year>\d{4}))?"
_DATES = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"(?P<month>{_MONTH})\.? ?(?:the )?(?P<day>\d{{1,2}})(?:\^?(?:st|nd|rd|th))?{_YEAR}",
        rf"(?:the )?(?P<day>\d{{1,2}})(?:\^?(?:st|nd|rd|th))?\.? ?(?:of )?(?P<month>{_MONTH})\.?{_YEAR}",
    )
)
_MAY_BE = re.compile(rf"\d ?\\?:|[ap]\.? ?m\b|noon|midnight|o'clock|(?:{_MONTH})", re.IGNORECASE)


@dataclass(frozen=True)
class Moment:
    """A time of day in minutes, or a date. `is_half`: which half of the day it is, is said."""

    minutes: int = -1
    is_half: bool = False
    month: int = 0
    day: int = 0
    year: str = ""

    def is_said_by(self, other: "Moment | None") -> bool:
        """Tell whether an answer says this: the year, and of a bare time the half of the day, may be added."""
        if other is None or (self.month, self.day) != (other.month, other.day):
            return False
        if self.month:
            return not self.year or not other.year or self.year == other.year
        if self.is_half or not other.is_half:
            return self.is_half <= other.is_half and self.minutes == other.minutes
        return self.minutes % 720 == other.minutes % 720


def moment(text: str) -> Moment | None:
    """Read the time of day or the date that a plain answer is; None if it is neither."""
    if not _MAY_BE.search(text):
        return None
    words = (
        _SPACES.sub(" ", _SETTING.sub(" ", text.replace("{:}", ":").replace("_{prime}", "'"))).strip().removesuffix(".")
    )
    if words.lower() in _NOON:
        return Moment(_NOON[words.lower()], True)
    time = _TIME.fullmatch(words)
    if time:
        return _time(time)
    for pattern in _DATES:
        date = pattern.fullmatch(words)
        if date and 1 <= int(date["day"]) <= 31:
            return Moment(month=_MONTHS[date["month"].lower()], day=int(date["day"]), year=date["year"] or "")
    return None


def _time(found: re.Match[str]) -> Moment | None:
    hour, minute = int(found[1]), int(found[3] or 0)
    half = {"morning": "a", "afternoon": "p", "evening": "p", "night": "p"}.get(
        (found["part"] or found["night"] or "").lower()
    )
    half = (found["half"] or half or "").lower()
    # "3.45" alone is a number, "9" too.
    if not half and found["sign"] != ":":
        return None
    if hour > (12 if half else 24) or (half and hour == 0):
        return None
    if half:
        return Moment(hour % 12 * 60 + minute + 720 * (half == "p"), True)
    # 15:45 and 0:10 leave no doubt about the half of the day.
    return Moment(hour % 24 * 60 + minute, hour > 12 or hour == 0)
