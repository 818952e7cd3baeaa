"""Maths sets as problems: DeepScaleR, MATH-500, GSM8K, AIME, HMMT and BRUMO as MathArena publishes them. Pure.

Answers are integers in some sets and texts in others: all become texts. A row without an answer is dropped.
"""

import re
from typing import Any

from oapl_core.importing.imported import Dropped, Imported, column, optional_text, text

# A comma between a digit and exactly three more: 1,234 and not (1,2).
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?:\D|$))")


def maths(row: dict[str, Any], name: str, number: int) -> Imported:
    """A row with a problem and an answer, in any of the names that the sets give these columns."""
    return Imported(_problem(row, name, number, _answer(row)))


def aime(row: dict[str, Any], name: str, number: int) -> Imported:
    """A row of an AIME set: the answer is an integer, which some write with leading zeros (`025`)."""
    answer = _answer(row)
    if not answer.isdecimal():
        raise Dropped("the answer is not an integer")
    problem = _problem(row, name, number, str(int(answer)))
    return Imported(problem | {"platform": "aime"})


def gsm8k(row: dict[str, Any], name: str, number: int) -> Imported:
    """A row of GSM8K: the answer follows `####`, with thousands separators."""
    _, mark, answer = text(row, "answer").rpartition("####")
    if not mark or not answer.strip():
        raise Dropped("no answer after ####")
    return Imported(_problem(row, name, number, _THOUSANDS.sub("", answer.strip())))


def _problem(row: dict[str, Any], name: str, number: int, answer: str) -> dict[str, Any]:
    # The number of the row only where the set has no name for it: it moves when the publisher inserts a row.
    named = next((row[key] for key in ("unique_id", "problem_idx", "id", "ID") if row.get(key) is not None), None)
    return {
        "problem_id": f"{name}/{named if named is not None else f'{number:05d}'}",
        "kind": "math",
        "statement": text(row, "problem", "Problem", "question"),
        "answer": answer,
        "difficulty": optional_text(row, "level"),
    }


def _answer(row: dict[str, Any]) -> str:
    value = column(row, "answer", "Answer")
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # a column of integers with a missing one is read as floating-point numbers
    if value is None or not str(value).strip():
        raise Dropped("no answer")
    return str(value).strip()
