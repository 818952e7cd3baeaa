"""Word problems whose text and question stand in two columns: ``oapl problems word-problems path=FILE``."""

from typing import Any

from oapl_extras.problem_sets.imported import Dropped, Imported, text


def word_problems(row: dict[str, Any], name: str, number: int) -> Imported:
    """Make a problem of a row with ``Body``, ``Question`` and an integer ``Answer``.

    Raises:
        Dropped: the answer is not an integer.
    """
    answer = text(row, "Answer")
    if not answer.removeprefix("-").isdecimal():
        raise Dropped("the answer is not an integer")
    return Imported(
        {
            "problem_id": f"{name}/{number}",
            "kind": "math",
            "statement": f"{text(row, 'Body')} {text(row, 'Question')}",
            "answer": answer,
        }
    )
