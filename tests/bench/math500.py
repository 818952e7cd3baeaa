"""`python -m tests.bench.math500`: every answer of MATH-500 against itself: writes docs/benchmarks/math500.md.

math-verify decides, without the shortcut for identical text that verification takes.
"""

from pathlib import Path
from typing import Any

from oapl_core.sandbox.sandbox import Sandbox
from oapl_core.verdicts.maths_pool import MathsPool
from tests.reference_sets import ROOT, math500

PAGE = Path("docs/benchmarks/math500.md")


def judge(pairs: list[tuple[str, str]]) -> list[dict[str, Any]]:
    """math-verify's word on each (gold, answer)."""
    with Sandbox() as sandbox:  # for its threads alone
        pool = MathsPool(sandbox.workers)
        try:
            return list(sandbox.stream(lambda pair: pool.judge(*pair), pairs))
        finally:
            pool.close()


def doubtful(rows: list[dict[str, Any]]) -> list[tuple[dict[str, Any], str]]:
    """The rows whose answer does not verify against itself, and why."""
    replies = judge([(row["answer"], row["answer"]) for row in rows])
    found = [(row, reply) for row, reply in zip(rows, replies, strict=True) if not reply["equal"]]
    return [(row, "parsed, but not equal" if reply["parsed"] else "cannot be parsed") for row, reply in found]


def page() -> str:
    """The page in Markdown."""
    rows = math500()
    found = doubtful(rows)
    lines = [
        "# MATH-500: which gold answers verify against themselves",
        "",
        f"Made by `python -m tests.bench.math500` from math500.jsonl in `$OAPL_SHARED_DATA`: "
        f"{len(rows) - len(found)} of {len(rows)} do, {len(found)} do not.",
        "",
        "Verification takes an answer that is the gold text itself as right without asking math-verify, so these rows",
        "can still be solved, but only in exactly these words: an importer should drop and count them.",
        "",
        *(f"- {row['unique_id']}: `{row['answer']}`: {why}" for row, why in found),
    ]
    if not found:
        lines = [*lines[:3], "An importer drops and counts rows that do not; here there are none."]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    (ROOT / PAGE).write_text(page())
    print(f"wrote {PAGE}")
