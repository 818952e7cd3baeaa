"""``python -m oapl_core.verdicts.verify RUN_DIR --round N``: round_NN/1_rollouts/part-* -> round_NN/2_verdicts/part-*.

One verdict part for each rollout part, under the same number, recorded in the ledger as it is finished; a second run
does only what is missing. Canaries are judged with every part. Memory holds one part at a time.
"""

import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from oapl_core.artifacts import Run
from oapl_core.errors import DataError, StageFailed
from oapl_core.progress import Progress, say
from oapl_core.stage import run_verb
from oapl_core.tables import PROBLEMS, ROLLOUTS, VERDICTS, read_table, write_table
from oapl_core.verdicts.outcomes import Outcome
from oapl_core.verdicts.verifier import VERIFIER_VERSION, Verifier

_READ = ("rollout_id", "problem_id", "text", "finish_reason")


def verify(run: Run, number: int) -> None:
    """Judge every rollout of round `number` that has no verdict yet.

    Raises:
        DataError: there are no rollouts, or one answers an unknown problem.
        SandboxError: no sandbox level works here.
        StageFailed: a canary was misjudged, or too many judgements failed for the verifier's own reasons.
    """
    parts = sorted(run.rollouts(number).glob("part-*.parquet"))
    if not parts:
        raise DataError(f"{run.rollouts(number)}: has no rollouts to verify; run the experiment again to sample them")
    settings = run.config.verifier.model_dump(mode="json", exclude={"workers"}) | {"version": VERIFIER_VERSION}
    inputs = {part: run.inputs([part, run.problems]) for part in parts}
    missing = [part for part in parts if not run.is_done(_target(run, number, part), inputs[part], settings)]
    rows = {part: read_table(part, ROLLOUTS, ["rollout_id"]).num_rows for part in parts}
    with Progress(f"verify round {number}", sum(rows.values()), "rollouts") as progress:
        progress.skip(sum(rows[part] for part in parts if part not in missing))
        if not missing:
            return
        problems = {p["problem_id"]: p for p in read_table(run.problems, PROBLEMS).to_pylist()}
        counts: Counter[Outcome] = Counter()
        with Verifier(run.config.verifier) as verifier:
            for part in missing:
                judged = _judge_part(verifier, part, problems, progress)
                counts.update(Outcome(row["outcome"]) for row in judged)
                _check_errors(counts, run.config.verifier.max_error_share, judged)
                with run.writing(_target(run, number, part), inputs[part], settings) as draft:
                    draft.rows = write_table(draft.path, VERDICTS, judged)
                    draft.details = {"outcomes": dict(Counter(row["outcome"] for row in judged))}
            _summary(counts, verifier)


def _target(run: Run, number: int, part: Path) -> Path:
    return run.verdicts(number) / part.name


def _judge_part(
    verifier: Verifier, part: Path, problems: Mapping[str, Mapping[str, Any]], progress: Progress
) -> list[dict[str, Any]]:
    rollouts = read_table(part, ROLLOUTS, _READ).to_pylist()
    unknown = next((r["problem_id"] for r in rollouts if r["problem_id"] not in problems), None)
    if unknown is not None:
        raise DataError(
            f"{part}: answers problem {unknown!r}, which is not in problems.parquet; delete it to remake it"
        )
    asked = [problems[r["problem_id"]] for r in rollouts]
    verifier.check_canaries({"stdin"} | {problem["kind"] for problem in asked})
    verdicts = verifier.stream(asked, [r["text"] for r in rollouts], [r["finish_reason"] for r in rollouts])
    judged, passed = [], 0
    for rollout, verdict in zip(rollouts, verdicts, strict=True):
        judged.append(verdict.row(rollout["rollout_id"]))
        passed += verdict.outcome is Outcome.PASSED
        progress.advance(note=f"{passed / len(judged):.0%} of this part pass")
    return judged


def _check_errors(counts: Counter[Outcome], allowed: float, judged: list[dict[str, Any]]) -> None:
    errors, total = counts[Outcome.VERIFIER_ERROR], counts.total()
    if errors > allowed * total:
        reason = next((r["excerpt"] for r in judged if r["outcome"] == Outcome.VERIFIER_ERROR), None)
        raise StageFailed(
            f"{errors} of {total} rollouts could not be judged, more than verifier.max_error_share={allowed} allows "
            f"(last reason: {reason}); run `oapl doctor`, then the same command again"
        )


def _summary(counts: Counter[Outcome], verifier: Verifier) -> None:
    outcomes = ", ".join(f"{outcome} {count}" for outcome, count in counts.most_common())
    slow = f"; {verifier.maths_too_slow} maths answers ran out of time" if verifier.maths_too_slow else ""
    say(f"outcomes: {outcomes}; sandbox {verifier.sandbox_level}; {verifier.errors_retried} judgements retried{slow}")


if __name__ == "__main__":
    sys.exit(run_verb(verify, has_round=True))
