"""Rows in the true shapes of the published sets, own-made: one small problem each, in every form its set has."""

import base64
import json
import pickle
import zlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

Row = dict[str, Any]

SUM = "import sys\nprint(sum(map(int, sys.stdin.read().split())))"
DOUBLE = "def double(values, times):\n    return [v * times for v in values]"
DOUBLE_METHOD = (
    "class Solution:\n    def double(self, values: List[int], times: int) -> List[int]:\n"
    "        return [v * times for v in values]"
)
DOUBLE_STARTER = "class Solution:\n    def double(self, values: List[int], times: int) -> List[int]:\n        "
SMALLEST = "def smallest(values):\n    return min(values)"
STDIN_TESTS = [(f"{i}\n{i + 1}\n", f"{2 * i + 1}\n") for i in range(6)]
CALLS = [([[i, 1], 2], [2 * i, 2]) for i in range(6)]
"""Arguments and value of `double`."""


def prime(**changes: Any) -> Row:
    """DeepCoder, primeintellect: printed."""
    tests = [{"type": "stdin_stdout", "input": a, "output": b, "fn_name": None} for a, b in STDIN_TESTS]
    row = {
        "problem": "Print the sum of the integers.",
        "solutions": [f"```python\n{SUM}\n```"],
        "tests": json.dumps(tests),
    }
    return row | changes


def prime_call(outputs: list[Any] | None = None, **changes: Any) -> Row:
    """DeepCoder, primeintellect: called; outputs wrapped in a list of one element unless others are given."""
    wanted = outputs or [[b] for _, b in CALLS]
    tests = [
        {"type": "function_call", "fn_name": "double", "input": a, "output": b}
        for (a, _), b in zip(CALLS, wanted, strict=True)
    ]
    return {"problem": "Write double(values, times).", "solutions": [DOUBLE], "tests": json.dumps(tests)} | changes


def taco(**changes: Any) -> Row:
    """DeepCoder, taco: printed."""
    tests = {"inputs": [a for a, _ in STDIN_TESTS], "outputs": [b for _, b in STDIN_TESTS]}
    return {"problem": "Add them all up.", "solutions": [SUM], "tests": json.dumps(tests)} | changes


def taco_call(**changes: Any) -> Row:
    """DeepCoder, taco: called."""
    tests = {"inputs": [a for a, _ in CALLS], "outputs": [[b] for _, b in CALLS], "fn_name": "double"}
    return {"problem": "Write double for lists.", "solutions": [DOUBLE_METHOD], "tests": json.dumps(tests)} | changes


def lcb_tests(functional: bool) -> list[dict[str, str]]:
    """Tests in LiveCodeBench's form."""
    if not functional:
        return [{"input": a, "output": b, "testtype": "stdin"} for a, b in STDIN_TESTS]
    return [
        {"input": "\n".join(map(json.dumps, a)), "output": json.dumps(b), "testtype": "functional"} for a, b in CALLS
    ]


def lcbv5(functional: bool, metadata: Any, **changes: Any) -> Row:
    """DeepCoder, lcbv5."""
    row = {
        "problem": "Multiply each." if functional else "Sum of all.",
        "starter_code": DOUBLE_STARTER if functional else "",
        "tests": json.dumps(lcb_tests(functional)),
        "metadata": metadata,
    }
    return row | changes


def codeforces(**changes: Any) -> Row:
    """DeepCoder, codeforces."""
    tests = [{"input": a, "output": b} for a, b in STDIN_TESTS]
    return {"problem": "Vasya adds numbers.", "tests": json.dumps(tests)} | changes


def packed(content: Any) -> str:
    """As LiveCodeBench packs private tests."""
    return base64.b64encode(zlib.compress(pickle.dumps(content))).decode()


def livecodebench(question: str, date: str, functional: bool = False, **changes: Any) -> Row:
    """LiveCodeBench: every column a text."""
    tests = lcb_tests(functional)
    row = {
        "question_title": f"Title of {question}",
        "question_content": f"Statement of {question}: {'multiply each' if functional else 'add'} {question}.",
        "platform": "leetcode" if functional else "atcoder",
        "question_id": question,
        "contest_id": "c1",
        "contest_date": f"{date}T00:00:00",
        "starter_code": DOUBLE_STARTER if functional else "",
        "difficulty": "hard",
        "public_test_cases": json.dumps(tests[:2]),
        "private_test_cases": packed(json.dumps(tests[2:])),
        "metadata": json.dumps({"func_name": "double"} if functional else {}),
    }
    return row | changes


def own_taco(**changes: Any) -> Row:
    """TACO as its authors publish it."""
    tests = {"inputs": [a for a, _ in CALLS], "outputs": [[b] for _, b in CALLS], "fn_name": "double"}
    row = {
        "question": "Double trouble.",
        "solutions": json.dumps([DOUBLE]),
        "starter_code": "",
        "input_output": json.dumps(tests),
        "difficulty": "EASY",
        "source": "codewars",
    }
    return row | changes


def own_primeintellect(**changes: Any) -> Row:
    """verifiable-coding-problems: a Python literal, not JSON."""
    tests = [{"fn_name": "smallest", "input": [[i, 9]], "output": [i], "type": "function_call"} for i in range(6)]
    row = {
        "problem_id": "vcp_1",
        "prompt": "Solve the following coding problem: write smallest(values).",
        "gold_standard_solution": f"```python\n{SMALLEST}\n```",
        "verification_info": repr({"language": "python", "test_cases": tests}),
        "source": "apps",
    }
    return row | changes


def write_rows(path: Path, *rows: Row) -> Path:
    """As .jsonl or .parquet."""
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(list(rows)), path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
