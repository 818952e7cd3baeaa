"""``python -m oapl_core.verdicts.verify RUN_DIR --round N [--follow]``: 1_rollouts/part-* -> 2_verdicts/part-*.

One verdict part for each rollout part, under the same number, recorded in the ledger as it is finished; a second run
does only what is missing. Canaries are judged with every part. Memory holds one part and its problems at a time. With
``--follow`` it goes on beside sampling, judges each part as soon as it is recorded, and ends after sampling has.
"""

import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from oapl_core.artifacts import Run
from oapl_core.errors import DataError, StageFailed
from oapl_core.plan import round_steps
from oapl_core.progress import Progress, say
from oapl_core.stage import run_verb
from oapl_core.tables import PROBLEMS, PROMPTS, ROLLOUTS, VERDICTS, count_rows, read_table, write_table
from oapl_core.verdicts.outcomes import Outcome
from oapl_core.verdicts.verifier import VERIFIER_VERSION, Verifier

_READ = ("rollout_id", "problem_id", "text", "finish_reason")
_LOOK_EVERY_S = 0.25


def verify(run: Run, number: int, follow: bool = False) -> None:
    """Judge every rollout of round `number` that has no verdict yet; with `follow`, also those still to be sampled.

    Raises:
        DataError: there are no rollouts, or one answers an unknown problem.
        SandboxError: no sandbox level works here.
        StageFailed: a canary was misjudged, or too many judgements failed for the verifier's own reasons.
    """
    parts = _parts(run, number, recorded_only=False)
    if not parts and not follow:
        raise DataError(f"{run.rollouts(number)}: has no rollouts to verify; run the experiment again to sample them")
    settings = run.config.verifier.model_dump(mode="json", exclude={"workers"}) | {"version": VERIFIER_VERSION}
    total = _expected(run, number) if follow else sum(count_rows(part) for part in parts)
    counts: Counter[Outcome] = Counter()
    with ExitStack() as stack:
        progress = stack.enter_context(Progress(f"verify round {number}", total, "rollouts"))
        verifier: Verifier | None = None
        for part in _sampled(run, number) if follow else iter(parts):
            inputs, target = run.inputs([part, run.problems]), run.verdicts(number) / part.name
            if run.is_done(target, inputs, settings):
                progress.skip(count_rows(part))
                continue
            verifier = verifier or stack.enter_context(Verifier(run.config.verifier))
            judged = _judge_part(verifier, part, _problems_of(run, part), progress)
            counts.update(Outcome(row["outcome"]) for row in judged)
            _check_errors(counts, run.config.verifier.max_error_share, judged)
            with run.writing(target, inputs, settings) as draft:
                draft.rows = write_table(draft.path, VERDICTS, judged)
                draft.details = {"outcomes": dict(Counter(row["outcome"] for row in judged))}
        if verifier:
            _summary(counts, verifier)


def _parts(run: Run, number: int, recorded_only: bool) -> list[Path]:
    """Rollout parts on disk; a part that is still being sampled has no name yet, one being recorded no entry."""
    parts = sorted(run.rollouts(number).glob("part-*.parquet"))
    recorded = run.ledger.artifacts() if recorded_only else {}
    return [part for part in parts if not recorded_only or run.name(part) in recorded]


def _sampled(run: Run, number: int) -> Iterator[Path]:
    """Parts as they are recorded, until a sampling process of this round has ended well after we began to look."""
    ends_before, seen = _sampling_ends(run, number), set[Path]()
    while True:
        over = _sampling_ends(run, number) > ends_before  # asked before looking, so that no last part is missed
        new = [part for part in _parts(run, number, recorded_only=True) if part not in seen]
        seen.update(new)
        yield from new
        if over:
            return
        time.sleep(_LOOK_EVERY_S)


def _sampling_ends(run: Run, number: int) -> int:
    label = round_steps(number)[0].label
    return sum(entry.stage == label and entry.exit_code == 0 for entry in run.ledger.stages())


def _expected(run: Run, number: int) -> int:
    """How many rollouts the round will have."""
    splits: list[str] = read_table(run.prompts, PROMPTS, ["split"])["split"].to_pylist()
    problems = min(splits.count("train"), run.config.rounds[number].problems or len(splits))
    return problems * run.config.sampling.group_size


def _problems_of(run: Run, part: Path) -> dict[str, Mapping[str, Any]]:
    """The problems that a part answers: all of a large set's tests would not fit into memory."""
    asked = set(read_table(part, ROLLOUTS, ["problem_id"])["problem_id"].to_pylist())
    rows = read_table(run.problems, PROBLEMS, only=("problem_id", asked)).to_pylist()
    return {row["problem_id"]: row for row in rows}


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
    options = {"follow": {"action": "store_true", "help": "go on beside sampling, until it ends"}}
    sys.exit(run_verb(verify, has_round=True, options=options))
