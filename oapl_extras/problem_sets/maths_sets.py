"""Maths sets as problems: DeepScaleR, MATH-500, GSM8K, SVAMP, AIME, HMMT and BRUMO as MathArena publishes them. Pure.

Answers are integers in some sets and texts in others: all become texts. A row without an answer is dropped.
"""

import re
from typing import Any

from oapl_extras.problem_sets.imported import Dropped, Imported, column, optional_text, text

# A comma between a digit and exactly three more: 1,234 and not (1,2).
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?:\D|$))")
_CALCULATOR = re.compile(r"<<[^<>]*>>")  # GSM8K's marks for a calculator, as in "48/2 = <<48/2=24>>24"
_WHOLE = re.compile(r"(?<=\d)\.0(?!\d)")  # SVAMP writes whole numbers as 76.0
_SVAMP_FLAWS = {"chal-680": "its equation, ( 4 - 2 ) + 3, does not give its answer, 1"}


def maths(row: dict[str, Any], name: str, number: int) -> Imported:
    """Import a row with a problem and an answer, in any of the names that the sets give these columns."""
    return Imported(_problem(row, name, number, _answer(row)), worked=optional_text(row, "solution"))


def aime(row: dict[str, Any], name: str, number: int) -> Imported:
    """Import a row of an AIME set: the answer is an integer, which some write with leading zeros (`025`)."""
    answer = _answer(row)
    if not answer.isdecimal():
        raise Dropped("the answer is not an integer")
    problem = _problem(row, name, number, str(int(answer)))
    return Imported(problem | {"platform": "aime"})


def gsm8k(row: dict[str, Any], name: str, number: int) -> Imported:
    """Import a row of GSM8K: the answer follows `####`, with thousands separators."""
    worked = _CALCULATOR.sub("", text(row, "answer"))
    _, mark, answer = worked.rpartition("####")
    if not mark or not answer.strip():
        raise Dropped("no answer after ####")
    return Imported(_problem(row, name, number, _THOUSANDS.sub("", answer.strip())), worked=worked.strip())


def svamp(row: dict[str, Any], name: str, number: int) -> Imported:
    """Import a row of SVAMP: a body, a question and an equation over its numbers, `( 76.0 - 25.0 )`, the working."""
    body, question, answer = text(row, "Body").strip(), text(row, "Question").strip(), _answer(row)
    stop = "" if body.endswith((".", "?", "!")) else "."  # a third of the bodies end without one
    equation = _WHOLE.sub("", text(row, "Equation")).strip().removeprefix("( ").removesuffix(" )")
    problem = _problem({"problem": f"{body}{stop} {question}", **row}, name, number, answer)
    flaw = _SVAMP_FLAWS.get(str(row.get("ID")))
    return Imported(problem | {"flaw": flaw}, worked=None if flaw else f"{equation} = {answer}\n#### {answer}")


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
