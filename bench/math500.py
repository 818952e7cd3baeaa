"""`python -m bench.math500 --before FOLDER`: maths answers of known sets, rewritten; writes two pages.

Each answer of MATH-500 against itself by the workers alone, without the shortcut for identical text; then every
rewriting of maths_rewritings.py, and GSM8K's answers, as responses to be judged. FOLDER is a checkout of another
version, to be judged beside this one:

    git worktree add ../oapl_before COMMIT

Writes docs/benchmarks/math500.md, and the table at the end of docs/maths.md.
"""

import argparse
import gzip
import inspect
import json
import re
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bench.maths_rewritings import RIGHT, WRONG, Row, boxed
from tests.reference_sets import ROOT, math500, shared_file

PAGE = Path("docs/benchmarks/math500.md")
RULES = Path("docs/maths.md")
MARK = "<!-- written by `python -m bench.math500` -->"
WORKERS = 2
MOST_SHOWN = 12
Counts = dict[str, tuple[int, int, list[str]]]
"""For each rewriting: how many responses there are, how many passed, and the answers that were misjudged."""


def judge(pairs: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
    """The workers' word on each (gold, answer)."""
    from oapl_core.verdicts.workers.maths_pool import MathsPool

    pool = MathsPool(WORKERS)
    with ThreadPoolExecutor(WORKERS) as threads:
        try:
            return list(threads.map(lambda pair: pool.judge(*pair), pairs))
        finally:
            pool.close()


def doubtful(rows: list[Row]) -> list[tuple[Row, str]]:
    """The rows whose answer does not verify against itself, and why."""
    replies = judge([(row["answer"], row["answer"]) for row in rows])
    found = [(row, reply) for row, reply in zip(rows, replies, strict=True) if not reply["equal"]]
    return [(row, "parsed, but not equal" if reply["parsed"] else "cannot be parsed") for row, reply in found]


def gsm8k() -> list[Row]:
    """The problems of GSM8K, with the number that the worked solution computes last."""
    rows = []
    for name in ("train", "test"):
        for line in gzip.decompress(shared_file(f"gsm8k/{name}.jsonl.gz").read_bytes()).splitlines():
            row = json.loads(line)
            solution, _, answer = row["answer"].rpartition("####")
            computed = re.findall(r"[-\d.,]*\d", re.sub(r"<<.*?>>", "", solution))
            last = computed[-1] if computed else ""
            rows.append({"problem": row["question"], "answer": answer.strip().replace(",", ""), "last": last})
    return rows


def counted(only: str = "") -> dict[str, Counts]:
    """Every rewriting whose name has ``only``, judged by whichever oapl_core is imported first."""
    from oapl_core.verdicts.answers import answer_rules
    from oapl_core.verdicts.workers.maths_pool import MathsPool

    pool = MathsPool(WORKERS)
    takes_statement = "statement" in inspect.signature(pool.equal).parameters

    def passes(job: tuple[Row, str]) -> bool:
        row, response = job
        answer = answer_rules.maths(response)
        more = (row["problem"],) if takes_statement else ()
        return answer is not None and pool.equal(row["answer"], answer, *more)

    with ThreadPoolExecutor(WORKERS) as threads:
        try:
            return {
                name: {title: _tally(rows, titled, list(threads.map(passes, titled))) for title, titled in jobs.items()}
                for name, rows, jobs in _jobs(only)
            }
        finally:
            pool.close()


def _jobs(only: str) -> list[tuple[str, bool, dict[str, list[tuple[Row, str]]]]]:
    """(set and side, whether its responses are right, the responses by title)."""
    found = []
    for name, rewritings in (("MATH-500, right", RIGHT), ("MATH-500, wrong", WRONG)):
        jobs: dict[str, list[tuple[Row, str]]] = {}
        for rewriting in rewritings:
            for row in math500():
                response = rewriting.response(row)
                if response is not None and (rewriting.passes or _bare(response) != _bare(boxed(row["answer"]) or "")):
                    jobs.setdefault(rewriting.name, []).append((row, response))
        found.append((name, rewritings[0].passes, jobs))
    rows = gsm8k()
    right = {
        "the gold itself": [(row, f"\\boxed{{{row['answer']}}}") for row in rows],
        "as dollars, with thousands": [(row, f"\\boxed{{\\${int(row['answer']):,}}}") for row in rows],
        "the worked solution's last number": [
            (row, f"\\boxed{{{row['last']}}}") for row in rows if _integer(row["last"]) == int(row["answer"])
        ],
    }
    wrong = {
        "the gold + 1": [(row, f"\\boxed{{{int(row['answer']) + 1}}}") for row in rows],
        "the gold in a list of guesses": [(row, f"\\boxed{{-1234567, {row['answer']}}}") for row in rows],
    }
    found += [("GSM8K, right", True, right), ("GSM8K, wrong", False, wrong)]
    wanted = [(name, is_right, {t: one for t, one in jobs.items() if only in t}) for name, is_right, jobs in found]
    return [one for one in wanted if one[2]]


def _bare(response: str) -> str:
    return re.sub(r"[\s{}]|(?<=\\)d(?=frac)", "", response)


def _integer(text: str) -> int | None:
    digits = text.replace(",", "").removesuffix(".00")
    return int(digits) if re.fullmatch(r"-?\d+", digits) else None


def _tally(are_right: bool, jobs: list[tuple[Row, str]], passed: list[bool]) -> tuple[int, int, list[str]]:
    """Counted by problem: one is passed if any of its responses is."""
    by_problem: dict[str, bool] = {}
    for (row, _), passes in zip(jobs, passed, strict=True):
        by_problem[row["problem"]] = by_problem.get(row["problem"], False) or passes
    misjudged = [
        f"`{row['answer']}`: `{response[:90]}`"
        for (row, response), passes in zip(jobs, passed, strict=True)
        if passes != are_right
    ]
    return len(by_problem), sum(by_problem.values()), misjudged


def table(before: dict[str, Counts], after: dict[str, Counts]) -> list[str]:
    """False rejections of right responses, then false acceptances of wrong ones, before and after."""
    lines = []
    for name, counts in after.items():
        is_right = name.endswith("right")
        what = "false rejections" if is_right else "false acceptances"
        lines += ["", f"| {name.split(',')[0]}: {what} | responses | before | after |", "|---|---|---|---|"]
        for title, (total, passed, _) in counts.items():
            old_total, old_passed, _ = before[name][title]
            errors = (old_total - old_passed, total - passed) if is_right else (old_passed, passed)
            lines.append(f"| {title.replace('|', '')} | {total} | {errors[0]} | {errors[1]} |")
    return [line.replace("\\boxed", "`\\boxed`") if "`" not in line else line for line in lines][1:]


def page(before: dict[str, Counts], after: dict[str, Counts]) -> str:
    """The page of raw numbers in Markdown."""
    rows = math500()
    found = doubtful(rows)
    lines = [
        "# MATH-500 and GSM8K: which answers verify, in which form",
        "",
        f"Made by `python -m bench.math500 --before ../oapl_before` from math500.jsonl and gsm8k in "
        f"`$OAPL_SHARED_DATA`: {len(rows) - len(found)} of {len(rows)} golds of MATH-500 verify against themselves, "
        f"{len(found)} do not.",
        "An importer drops and counts rows that do not.",
        *(f"- {row['unique_id']}: `{row['answer']}`: {why}" for row, why in found),
        "",
        "*Before* is the verifier of version 4: `git worktree add ../oapl_before 92f8a89`. The rewritings are those of",
        "bench/maths_rewritings.py; a wrong response that is the gold's own text is left out.",
        "",
        *table(before, after),
        "",
        "## What is still misjudged",
        "",
    ]
    for name, counts in after.items():
        for title, (_, _, misjudged) in counts.items():
            lines += [f"- {name}, {title}: {line}" for line in misjudged[:MOST_SHOWN]]
            if len(misjudged) > MOST_SHOWN:
                lines.append(f"- {name}, {title}: and {len(misjudged) - MOST_SHOWN} more")
    return "\n".join(lines) + "\n"


def _other(folder: Path, only: str) -> dict[str, Counts]:
    command = [sys.executable, "-m", "bench.math500", "--code", str(folder), "--only", only]
    found: dict[str, Counts] = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, help="a checkout of another version")
    parser.add_argument("--code", type=Path, help="print the counts of this checkout's verifier as JSON, write nothing")
    parser.add_argument("--only", default="", help="print the table of rewritings whose name has this; write nothing")
    options = parser.parse_args()
    if options.code:
        sys.path.insert(0, str(options.code.resolve()))
        print(json.dumps(counted(options.only)))
        return
    if not (options.before or options.only):
        parser.error("--before FOLDER: the pages have a column of it; without, say --only WORDS, which writes nothing")
    after = counted(options.only)
    before = _other(options.before, options.only) if options.before else after
    if options.only:
        print("\n".join(table(before, after)))
        return
    (ROOT / PAGE).write_text(page(before, after))
    rules = (ROOT / RULES).read_text()
    (ROOT / RULES).write_text(rules.partition(MARK)[0] + MARK + "\n\n" + "\n".join(table(before, after)) + "\n")
    print(f"wrote {PAGE} and the table of {RULES}")


if __name__ == "__main__":
    main()
