r"""Gold, read once for all its answers: its kind of answer, and how answers of that kind are compared. Pure.

Times, dates, choices and functions by cases are compared here, without the parser. For the rest an answer is written in
the gold's own way, where only the gold tells what the answer means: "2 to 5", "1000,99".
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from oapl_core.maths import cases, choices
from oapl_core.maths.calendar import Moment, moment
from oapl_core.maths.spoken import measures, number_in_words
from oapl_core.maths.statement import Statement
from oapl_core.maths.units import Allowed, SplitAnswer

_TO = re.compile(r"(\d+(?:\.\d+)?)\s*(?:to|\\text\s*\{\s*to\s*\})\s*(?=\d)")
_NUMBER = re.compile(r"\d+")
_DECIMAL = re.compile(r"-?\d*\.\d+")
_DECIMAL_COMMA = re.compile(r"(-?)(\d+|\d{1,3}(?:[. ]\d{3})+),(\d+)")
_CLOSED = re.compile(r"\\infty\s*\]|\[\s*[-+]?\s*\\infty")


@dataclass(frozen=True)
class Gold:
    """A gold answer and what kind it is."""

    split: SplitAnswer
    moment: Moment | None
    choices: frozenset[str] | None
    """The letters of several choices."""
    labelled: tuple[str, str] | None
    """Letter and value of a choice that names both."""
    is_choice: bool
    cases: list[tuple[str, str]] | None
    measures: tuple[tuple[str, str], ...] | None
    """Number and unit of each part of an answer in several units."""

    @classmethod
    def of(cls, text: str, statement: Statement) -> "Gold":
        """Read a gold as the problem set has it."""
        split = SplitAnswer.of(text, Allowed.of_gold(statement))
        when = moment(split.text)
        # 11:21 is a ratio where the statement speaks of one.
        when = None if when and not when.month and not when.is_half and statement.is_ratio else when
        several = choices.several(split.text)
        if several is None and statement.has_choices:
            several = choices.run(split.text)
        label = choices.labelled(split.text)
        return cls(
            split, when, several, label, choices.is_choice(split.text), cases.rows(split.text), measures(split.text)
        )

    def says(self, answer: str, same: Callable[[str, str], bool]) -> bool | None:
        """Tell whether a plain answer says what this gold says; None where that is for the parser to tell.

        `same` compares two plain texts.
        """
        if self.moment:
            return self.moment.is_said_by(moment(answer))
        if self.measures:
            return self.measures == measures(answer)
        if self.choices:
            return self.choices == (choices.several(answer) or choices.run(answer))
        label = choices.labelled(answer) if self.is_choice or self.labelled else None
        if label:
            letter = self.labelled[0] if self.labelled else re.sub("[^A-J]", "", self.split.text)
            return letter == label[0]
        if self.labelled:
            return answer.strip("() ") == self.labelled[0] or same(self.labelled[1], answer)
        theirs = cases.rows(answer) if self.cases else None
        return None if not self.cases or theirs is None else _same_cases(self.cases, theirs, same)

    def comparable(self, answer: SplitAnswer, statement: Statement) -> SplitAnswer:
        """Return the answer with its signs read as the gold's are."""
        rest, gold = answer.rest, self.split.rest
        # A gold in words may be asked for so: "write 23 in words". Then digits would repeat the question.
        spoken = number_in_words(answer.text) if _NUMBER.fullmatch(gold) else None
        if spoken is not None:
            return SplitAnswer(str(spoken), str(spoken), "")
        if ":" in gold:
            rest = _TO.sub(r"\1:", rest)
        comma = _DECIMAL_COMMA.fullmatch(rest) if "," in rest and _DECIMAL.fullmatch(gold) else None
        # 3,142 is three thousand; 0,142 is no group of a number.
        if comma and (len(comma[3]) != 3 or comma[2] == "0"):
            rest = f"{comma[1]}{re.sub('[. ]', '', comma[2])}.{comma[3]}"
        label = choices.labelled(rest) if statement.has_choices else None
        if label:
            return SplitAnswer.of(label[1], Allowed.of_answer(statement, self.split))
        return answer if rest == answer.rest else SplitAnswer(answer.text, rest, answer.unit)


def is_closed_at_infinity(text: str) -> bool:
    """Tell whether an interval claims to hold infinity."""
    return "\\infty" in text and _CLOSED.search(text) is not None


def _same_cases(ours: list[tuple[str, str]], theirs: list[tuple[str, str]], same: Callable[[str, str], bool]) -> bool:
    """Tell whether each case has its counterpart; of two cases either side may call one "otherwise"."""
    if len(ours) != len(theirs):
        return False
    if len(ours) == 2:
        ours, theirs = cases.spelt_out(ours), cases.spelt_out(theirs)
    left = list(theirs)
    for value, condition in ours:
        found = next(
            (one for one in left if one[1] == condition or (condition and one[1] and same(condition, one[1]))), None
        )
        if found is None or not same(value, found[0]):
            return False
        left.remove(found)
    return True
