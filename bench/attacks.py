"""What answers that deserve nothing earn: ``python -m bench.attacks [--full]`` writes docs/benchmarks/attacks.md.

Problems: yes/no problems and functions made here, the demo's, HumanEval and MATH-500 (a sample of each, or all with
--full). Every row whose strategy earns more than it deserves is marked, with the problems; the exit code is then 1.
"""

import argparse
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from oapl_core.problems.problem_set import read_problem_set
from oapl_core.settings.verifier import VerifierConfig
from oapl_core.verdicts.attack_strategies import SPIED, STRATEGIES
from oapl_core.verdicts.attacks import Earned, attack
from oapl_core.verdicts.extraction import fenced
from oapl_core.verdicts.verifier import VERIFIER_VERSION, Verifier
from tests.reference_sets import ROOT, humaneval, math500, shared_file
from tests.reference_sets import problem as assert_problem

PAGE = Path("docs/benchmarks/attacks.md")
CONFIG = VerifierConfig(cpu_s=1.5, wall_s=4, memory_mb=512, workers=2)
SAMPLE, FULL = 4, 20
_LUCK = 4.0
"""Standard deviations of luck that a strategy which draws may have."""


def yes_no(count: int, tests: int, seed: int) -> Iterator[dict[str, Any]]:
    """Yes/no problems: is the number above a limit that no input tells?"""
    drawn = random.Random(seed)
    for number in range(count):
        limit = drawn.randrange(100)
        inputs = [drawn.randrange(100) for _ in range(tests)]
        rows = [{"input": f"{value}\n", "output": "YES\n" if value > limit else "NO\n"} for value in inputs]
        yield _problem(f"yes-no-{tests}-{number}", "stdin", rows)


def functions(count: int, tests: int, seed: int) -> Iterator[dict[str, Any]]:
    """Functions of a list with small values: True/False, counts, lists."""
    drawn = random.Random(seed)
    for number in range(count):
        rows = []
        for _ in range(tests):
            values = [drawn.randrange(9) for _ in range(drawn.randrange(1, 6))]
            wanted = (sum(values) % 2 == 0, len({*values}), sorted(values)[: number % 3])[number % 3]
            rows.append(
                {"input": f"[{values}]", "output": str(wanted).replace("True", "true").replace("False", "false")}
            )
        yield _problem(f"function-{tests}-{number}", "function", rows) | {"entry_point": "solve"}


def _problem(name: str, kind: str, tests: list[dict[str, str]]) -> dict[str, Any]:
    blank = {"entry_point": None, "answer": None, "starter_code": None, "checker": None, "statement": name}
    return {**blank, "problem_id": name, "kind": kind, "tests": tests}


def problems(scale: int, with_shared: bool = True) -> list[dict[str, Any]]:
    """The sample; `scale` 1 is the small one of the default tests."""
    made = [*yes_no(6 * scale, 2, 1), *yes_no(6 * scale, 10, 2), *functions(6 * scale, 4, 3)]
    demo = [*read_problem_set(ROOT / "data/demo/heldout.jsonl", "heldout")][: 6 * scale]
    if not with_shared:
        return [*made, *demo]
    checked = [assert_problem(row) for row in humaneval(shared_file("HumanEval.jsonl.gz"))][: 6 * scale]
    maths = [
        _problem(row["unique_id"], "math", []) | {"answer": row["answer"], "statement": row["problem"]}
        for row in math500()
    ][: 25 * scale]
    return [*made, *demo, *checked, *maths]


def neighbours(verifier: Verifier, asked: Sequence[dict[str, Any]]) -> None:
    """Runs programs that a spy would like to find, on every server."""
    source = f"# {SPIED}\nprint('YES')\n# end\n" * 20
    stdin = [problem for problem in asked if problem["kind"] == "stdin"]
    verifier.verify(stdin, [fenced(f"{source}# {number}") for number in range(len(stdin))], ["stop"] * len(stdin))


def excess(earned: Earned) -> bool:
    """Whether a strategy earned more than it deserved; one that draws may have some luck."""
    luck = _LUCK * (earned.deserved**0.5 + 0.5) if earned.strategy.family == "random" else 1e-9
    return earned.passed - earned.deserved > luck or earned.verifier_errors > 0


def page(found: Sequence[Earned], level: str, scale: int) -> str:
    """The page in Markdown."""
    lines = [
        "# What answers earn that deserve nothing",
        "",
        f"Made by `python -m bench.attacks{' --full' if scale > SAMPLE else ''}`, verifier version "
        f"{VERIFIER_VERSION}, sandbox level {level}. A strategy sees a problem's statement, never what its",
        "tests expect. *Deserved* is counted by plain comparison: where every test expects NO, printing NO is right.",
        "What is earned beyond that would be a hole; bold rows would be one.",
        "",
        "| family | strategy | kinds | answers | earned | deserved | over | verifier errors |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in found:
        mark = "**" if excess(row) else ""
        kinds, strategy = ", ".join(row.strategy.kinds), row.strategy
        cells = [strategy.family, f"`{strategy.name}`", kinds, row.answers, row.passed, f"{row.deserved:.1f}"]
        cells += [f"{row.passed - row.deserved:+.1f}", row.verifier_errors]
        lines.append("| " + " | ".join(f"{mark}{cell}{mark}" for cell in cells) + " |")
    named = [f"- `{row.strategy.name}`: {', '.join(row.undeserved)}" for row in found if row.undeserved]
    return "\n".join([*lines, "", "Problems that paid without a chance:", "", *(named or ["none"])]) + "\n"


def run(scale: int, level: Any = None, with_shared: bool = True) -> tuple[list[Earned], str]:
    """Every strategy on the sample."""
    asked = problems(scale, with_shared)
    with Verifier(CONFIG, level=level) as verifier:
        neighbours(verifier, asked)
        return list(attack(verifier, asked, STRATEGIES)), verifier.sandbox_level


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true")
    scale = FULL if parser.parse_args().full else SAMPLE
    found, level = run(scale)
    text = page(found, level, scale)
    PAGE.write_text(text)
    print(text)
    sys.exit(any(excess(row) for row in found))
