"""The folders that the shipped experiments import from, in the true schemas and own-made: `data/sources/...`.

Each training set also has what curation must leave out: a problem of an evaluation set, one with too few tests, one
whose reference solution is wrong, one that another set has.
"""

import json
import random
import re
from pathlib import Path
from typing import Any

from tests.extras.problem_sets import foreign_rows as rows
from tests.extras.problem_sets.foreign_rows import Row, write_rows

GOOD = 12
"""Problems of each training file that curation keeps."""
WITHIN, LATER = 10, 5
"""LiveCodeBench's inside the 279-problem window, and after it."""
EACH_CONTEST = 9
"""Problems of each maths contest."""

_WORDS = (
    "array tree graph path sum prime digit string matrix queue stack island river station ticket parcel mountain lamp "
    "colour circle square robot garden bridge market library train planet signal harbour forest mirror castle window"
)


def imports(experiment: Path) -> list[list[str]]:
    """Arguments of the `oapl` commands in an experiment's header that make its problem files."""
    comment = re.sub(r" \\\n# +", " ", experiment.read_text())
    return [line.split()[2:] for line in comment.splitlines() if line.startswith("#   oapl problems")]


def statement(name: str) -> str:
    """Forty words that no other name gives."""
    choose, words = random.Random(name), _WORDS.split()
    return f"Task {name}. " + " ".join(choose.choice(words) for _ in range(40)) + "."


def write_deepcoder_sources(folder: Path) -> None:
    """DeepCoder-Preview and code_generation_lite below ``folder``."""
    _write_livecodebench(folder / "livecodebench")
    contaminated = rows.livecodebench("w0", "2024-09-01", question_content=statement("w0"))["question_content"]
    lcbv5 = [_lcbv5(f"lcbv5 {i}", i % 2 == 0) for i in range(GOOD)]
    _write(folder / "deepcoder/lcbv5/train-00000-of-00001.parquet", [*lcbv5, _lcbv5("lcbv5 few", False, tests=2)])
    taco = [rows.taco(problem=statement(f"taco {i}")) for i in range(GOOD)]
    wrong = rows.taco(problem=statement("taco wrong"), solutions=["print(input())"])
    _write(folder / "deepcoder/taco/train-00000-of-00001.parquet", [rows.taco(problem=contaminated), wrong, *taco])
    prime = [(rows.prime_call if i % 3 == 0 else rows.prime)(problem=statement(f"prime {i}")) for i in range(GOOD)]
    again = rows.prime(problem=statement("taco 3"))
    _write(folder / "deepcoder/primeintellect/train-00000-of-00001.parquet", [again, *prime])


def write_math_sources(folder: Path) -> None:
    """DeepScaleR-Preview and MathArena's contests below ``folder``."""
    for name in ("aime25", "hmmt-feb25", "hmmt-nov25", "brumo25"):
        contest = [
            {"problem_idx": i, "problem": statement(f"{name} {i}"), "answer": 10 + i, "problem_type": ["Algebra"]}
            for i in range(EACH_CONTEST)
        ]
        _write(folder / name / "data/train-00000-of-00001.parquet", contest)
    good = [_deepscaler(f"deepscaler {i}", f"\\frac{{{i}}}{{7}}") for i in range(GOOD)]
    left_out = [
        _deepscaler("brumo25 2", "12"),
        _deepscaler("deepscaler 5", "\\frac{5}{7}"),
        _deepscaler("no answer", ""),
    ]
    (folder / "deepscaler").mkdir(parents=True)
    (folder / "deepscaler/deepscaler.json").write_text(json.dumps([*good, *left_out]))


def _write_livecodebench(folder: Path) -> None:
    """Six files, of which the first five are release 5."""
    folder.mkdir(parents=True)
    files: list[list[Row]] = [[] for _ in range(6)]
    for i in range(WITHIN):
        files[i % 5].append(_livecodebench(f"w{i}", f"2024-{8 + i % 5:02d}-01", functional=i % 3 == 1))
    files[0].append(_livecodebench("early", "2024-07-31", functional=False))
    files[5] += [_livecodebench(f"l{i}", "2025-03-01", functional=i % 2 == 0) for i in range(LATER)]
    for number, content in enumerate(files, start=1):
        write_rows(folder / f"test{number if number > 1 else ''}.jsonl", *content)


def _livecodebench(name: str, day: str, functional: bool) -> Row:
    return rows.livecodebench(name, day, functional, question_content=statement(name))


def _lcbv5(name: str, functional: bool, tests: int = 6) -> Row:
    metadata = {"func_name": "double" if functional else None}
    kept = rows.lcb_tests(functional)[:tests]
    return rows.lcbv5(functional, metadata, problem=statement(name), tests=json.dumps(kept))


def _deepscaler(name: str, answer: str) -> dict[str, Any]:
    return {"problem": statement(name), "answer": answer, "solution": "It follows."}


def _write(path: Path, content: list[Row]) -> None:
    path.parent.mkdir(parents=True)
    write_rows(path, *content)
