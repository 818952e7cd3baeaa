"""LiveCodeBench code_generation_lite: rows of test.jsonl ... test6.jsonl as problems. Pure.

Every column is a text, also those with JSON or packed JSON in them. A release vN is the first N files together. Tests
keep their order, public then private. The faulty problems are those that upstream's ERRATA.md lists (17); they are
marked in the column `flaw`, so that figures can be given with and without them.
"""

import re
from typing import Any

from oapl_core.importing.compressed_tests import private_tests
from oapl_core.importing.imported import Dropped, Imported, column, optional_text, parsed, text
from oapl_core.importing.program_tests import fill, function_name, objects, one_of

_SEVERAL = "several answers are right, one is accepted"
_INTERACTIVE = "interactive"
FAULTY = {
    **dict.fromkeys(
        (
            "abc311_c",
            "abc326_d",
            "abc327_b",
            "abc333_e",
            "abc343_a",
            "abc343_e",
            "abc362_c",
            "arc185_c",
            "find-words-containing-character",
            "find-the-peaks",
            "generate-binary-strings-without-adjacent-zeros",
        ),
        _SEVERAL,
    ),
    **dict.fromkeys(("abc337_e", "abc355_e"), _INTERACTIVE),
    "abc350_c": "wrong tests",
    "apply-operations-to-make-string-empty": "a wrong test (empty string)",
    "most-frequent-ids": "input outside of the constraints",
    "arc189_a": "a wrong expected output",
}
"""By question id (AtCoder) or by the title as LeetCode's address spells it."""


def livecodebench(row: dict[str, Any], name: str, number: int) -> Imported:
    """A row of any release; see `imported.py` for what is raised."""
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
    tests = objects(parsed(row.pop("public_test_cases") or "[]", "tests"))
    tests += objects(private_tests(row.pop("private_test_cases") or "[]"))
    kind = one_of((test.get("testtype") for test in tests), "types") or "stdin"
    if kind not in ("stdin", "functional"):
        raise Dropped(f"tests of the unknown type {kind}")
    metadata = parsed(row.get("metadata") or "{}", "metadata")
    imported = Imported(problem)
    named = metadata.get("func_name") or function_name(starter_code)
    fill(imported, "stdin" if kind == "stdin" else "lines", named, [(t["input"], t["output"]) for t in tests])
    return imported


def slug(title: str) -> str:
    """``Find the Peaks`` as ``find-the-peaks``."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


def _day(date: str) -> str:
    if not re.match(r"\d{4}-\d\d-\d\d", date):
        raise ValueError(f"`contest_date` is {date!r}, not a date as 2024-08-01T00:00:00")
    return date[:10]
