"""`python -m bench.humaneval`: HumanEval's solutions, emptied and mutated: writes docs/benchmarks/humaneval.md.

A mutant that passes is no error of the verifier: either the mutation changes nothing, or HumanEval's checks are weak.
"""

from collections import Counter
from pathlib import Path

from oapl_core.settings.verifier import VerifierConfig
from oapl_core.verdicts.outcomes import Outcome
from oapl_core.verdicts.verifier import VERIFIER_VERSION, Verdict, Verifier
from tests import sandboxes
from tests.reference_sets import ROOT, emptied, fenced, humaneval, mutated, problem, shared_file, solution

PAGE = Path("docs/benchmarks/humaneval.md")
CONFIG = VerifierConfig(cpu_s=3, wall_s=9)
_SHOWN = 72


def judge(path: Path) -> dict[str, list[Verdict]]:
    """Verdicts on the reference solutions, on emptied bodies and on mutants, each in the file's order."""
    rows = humaneval(path)
    variants = {
        "reference solution": [solution(row) for row in rows],
        "emptied body": [emptied(row) for row in rows],
        "one mutated operator": [mutated(row)[0] for row in rows],
    }
    problems = [problem(row) for row in rows]
    with Verifier(CONFIG, level=sandboxes.LEVEL) as verifier:
        return {
            name: verifier.verify(problems, [fenced(source) for source in sources], ["stop"] * len(rows))
            for name, sources in variants.items()
        }


def page(path: Path) -> str:
    """The page in Markdown."""
    verdicts, mutants = judge(path), [mutated(row)[1] for row in humaneval(path)]
    lines = [
        "# HumanEval: what the assert-style verifier says",
        "",
        "Made by `python -m bench.humaneval` from HumanEval.jsonl.gz in `$OAPL_SHARED_DATA`: "
        f"{len(mutants)} problems, {CONFIG.cpu_s:g} s of CPU each, verifier version {VERIFIER_VERSION}.",
        "",
        "| program | passed | other outcomes |",
        "|---|---|---|",
    ]
    for name, found in verdicts.items():
        counts = Counter(verdict.outcome for verdict in found)
        passed = counts.pop(Outcome.PASSED, 0)
        others = ", ".join(f"{outcome} {count}" for outcome, count in sorted(counts.items()))
        lines.append(f"| {name} | {passed} / {len(found)} | {others or 'none'} |")
    lines += [
        "",
        "The mutant is the reference solution with the first operator of its body exchanged; the few bodies without",
        "one get their first returned value negated. A mutant that passes shows an exchange without effect or checks",
        "that are too weak to see it, not an error of the verifier.",
        "",
        "| problem | mutation | verdict |",
        "|---|---|---|",
    ]
    for verdict, mutation in zip(verdicts["one mutated operator"], mutants, strict=True):
        shown = mutation if len(mutation) <= _SHOWN else f"{mutation[: _SHOWN // 2 - 1]} ... {mutation[-_SHOWN // 2 :]}"
        cell = shown.replace("|", "\\|").replace("\n", " ")
        lines.append(f"| {verdict.problem_id} | `{cell}` | {verdict.outcome} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    (ROOT / PAGE).write_text(page(shared_file("HumanEval.jsonl.gz")))
    print(f"wrote {PAGE}")
