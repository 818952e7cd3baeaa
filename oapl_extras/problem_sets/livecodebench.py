"""LiveCodeBench code_generation_lite: rows of test.jsonl ... test6.jsonl as problems. Pure.

Every column is a text, also those with JSON or packed JSON in them. A release vN is the first N files together. Tests
keep their order, public then private. The faulty problems are those that upstream's ERRATA.md lists (17). The column
`flaw` marks them, so that figures can be given with and without them.
"""

import re
from typing import Any

from oapl_core.problems.compressed_tests import private_tests
from oapl_extras.problem_sets.imported import Imported, column, optional_text, parsed, text
from oapl_extras.problem_sets.program_tests import fill, form_of, function_name, objects

_FAULTS = {
    "several answers are right, one is accepted": "abc311_c abc326_d abc327_b abc333_e abc343_a abc343_e abc362_c "
    "arc185_c find-words-containing-character find-the-peaks generate-binary-strings-without-adjacent-zeros",
    "interactive": "abc337_e abc355_e",
    "wrong tests": "abc350_c",
    "a wrong test (empty string)": "apply-operations-to-make-string-empty",
    "input outside of the constraints": "most-frequent-ids",
    "a wrong expected output": "arc189_a",
}
FAULTY = {question: flaw for flaw, questions in _FAULTS.items() for question in questions.split()}
"""By question id (AtCoder) or by the title as LeetCode's address spells it."""


def livecodebench(row: dict[str, Any], name: str, number: int) -> Imported:
    """Import a row of any release; `imported.py` names the errors."""
    question, title = text(row, "question_id"), text(row, "question_title")
    starter_code = optional_text(row, "starter_code")
    problem: dict[str, Any] = {
        "problem_id": f"{name}/{question}",
        "statement": text(row, "question_content"),
        "starter_code": starter_code,
        "platform": optional_text(row, "platform"),
        "difficulty": optional_text(row, "difficulty"),
        "released": _day(text(row, "contest_date")),
        "flaw": FAULTY.get(question) or FAULTY.get(slug(title)),
    }
    for packed in ("public_test_cases", "private_test_cases"):
        column(row, packed)
    # Taken out of the row: packed and unpacked tests together would not fit where the unpacked ones do.
    tests = objects(parsed(row.pop("public_test_cases") or "[]", "tests"))
    tests += objects(private_tests(row.pop("private_test_cases") or "[]"))
    metadata = parsed(row.get("metadata") or "{}", "metadata")
    imported = Imported(problem)
    # The method to call is in the metadata or, where they do not name it, in the starter code.
    named = metadata.get("func_name") or function_name(starter_code)
    fill(imported, form_of(tests), named, [(test["input"], test["output"]) for test in tests])
    return imported


def slug(title: str) -> str:
    """Write ``Find the Peaks`` as ``find-the-peaks``."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


def _day(date: str) -> str:
    if not re.match(r"\d{4}-\d\d-\d\d", date):
        raise ValueError(f"`contest_date` is {date!r}, not a date as 2024-08-01T00:00:00")
    return date[:10]
