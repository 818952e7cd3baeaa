"""Runs in inspect's own environment, as a program: ``python -P inspect_runner.py asked.json``; imports nothing of ours.

Reads what inspect_harness.py wrote. Asks the server through inspect, and writes (problem, correct) of every answer.
"""

import asyncio
import json
import re
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

from inspect_ai import Epochs, Task, eval
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.model import GenerateConfig
from inspect_ai.scorer import CORRECT, INCORRECT, Score, Scorer, Target, accuracy, math, scorer
from inspect_ai.solver import TaskState, generate

_FENCED = re.compile(r"```(?:python|py)?\s*\n(.*?)```", re.DOTALL)
_LINE_BYTES = 2**28
_ERROR_SHARE = 0.05
"""Share of the answers; with more that it could not judge nothing is concluded."""


async def ended_well(box: str, source: str, given: str = "") -> tuple[bool, str]:
    """Run a program in the sandbox behind ``box``; tell whether it ended with 0, and what it printed."""
    reader, writer = await asyncio.open_unix_connection(box, limit=_LINE_BYTES)
    writer.write(json.dumps({"source": source, "input": given}).encode() + b"\n")
    await writer.drain()
    said = json.loads(await reader.readline())
    writer.close()
    return said["exit_code"] == 0, said["stdout"]


def checks(row: dict[str, Any]) -> str:
    """Python that fails unless the function above it does what the tests say."""
    if row["kind"] == "assert":
        return "\n".join(test["input"] for test in row["tests"])
    pairs = json.dumps([[json.loads(test["input"]), json.loads(test["output"])] for test in row["tests"]])
    return f"import json\nfor given, due in json.loads({pairs!r}):\n    assert {row['entry_point']}(*given) == due\n"


@scorer(metrics=[accuracy()])
def programs(box: str) -> Scorer:
    """Score by HumanEval's rule: the first fenced program with the tests behind it ends without an exception."""

    async def score(state: TaskState, target: Target) -> Score:
        row, found = state.metadata, _FENCED.search(state.output.completion)
        if found is None:
            return Score(value=INCORRECT, explanation="no program")
        if row["kind"] == "stdin":
            is_correct = True
            for test in row["tests"]:
                went, printed = await ended_well(box, found[1], test["input"])
                is_correct = is_correct and went and printed.strip() == test["output"].strip()
        else:
            # what the problem declares, HumanEval's imports for example, serves the program
            starter = row["starter_code"] or "" if row["kind"] == "assert" else ""
            is_correct, _ = await ended_well(box, f"{starter}\n{found[1]}\n{checks(row)}")
        return Score(value=CORRECT if is_correct else INCORRECT, answer=found[1])

    return score


def tasks(asked: dict[str, Any]) -> list[Task]:
    """Make a task of maths and one of programs, as far as there are such problems."""
    maths = [row for row in asked["problems"] if row["kind"] == "math"]
    others = [row for row in asked["problems"] if row["kind"] != "math"]
    judged = [("maths", maths, math()), ("programs", others, programs(asked["box"]))]
    return [
        Task(
            name=name,
            dataset=MemoryDataset(
                [
                    Sample(input=row["prompt"], target=row["answer"] or "", id=row["problem_id"], metadata=row)
                    for row in rows
                ]
            ),
            solver=generate(cache=False),
            scorer=by,
            epochs=Epochs(asked["samples"], "mean"),
            config=GenerateConfig(**asked["generation"]),
        )
        for name, rows, by in judged
        if rows
    ]


def main(path: Path) -> None:
    """Ask for answers, score them, write the scores."""
    asked = json.loads(path.read_text(encoding="utf-8"))
    options = {"display": "plain", "log_dir": asked["logs"], "log_format": "json", "fail_on_error": _ERROR_SHARE}
    scores = []
    for log in eval(tasks(asked), model=asked["model"], **options):
        if log.status != "success":
            sys.exit(f"{log.eval.task}: {log.error.message if log.error else log.status}")
        for sample in log.samples:
            # its `math` raises on some expressions: such an answer is not judged, as a verifier error of ours is not
            scores += [[sample.id, score.value == CORRECT] for score in (sample.scores or {}).values()]
    Path(asked["results"]).write_text(json.dumps({"version": version("inspect_ai"), "scores": scores}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
