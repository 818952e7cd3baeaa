"""Alarms about things that a person should look at: every rule, by the stage after which it can speak. Pure.

Reads the ledger alone. A round may suddenly solve nearly everything, or give answers twice or half as long. It may have
found a hole in a verifier, a broken prompt or other problems. Thresholds: settings/operation/alarms.py.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from oapl_core.planning.stages import GROUPS, TRAINING
from oapl_core.run_folder.run import Run


@dataclass(frozen=True)
class Alarm:
    """One rule that was broken."""

    rule: str
    """Prefect's event is called ``oapl.<rule>``."""
    line: str


def alarms(run: Run, number: int, after: str | None = None) -> Iterator[Alarm]:
    """Yield the alarms of round ``number``, or only of the rules that speak ``after`` a verb; most rounds have none."""
    for verb, rules in RULES.items():
        if after in (None, verb):
            for rule in rules:
                yield from rule(run, number)


def _jumps(run: Run, number: int) -> Iterator[Alarm]:
    """Yield an alarm for each jump from round ``number`` - 1 to ``number``; none where either is not that far."""
    before, now = (_facts(run, k) for k in (number - 1, number))
    if number == 0 or before is None or now is None:
        return
    (rate, tokens), (new_rate, new_tokens) = before, now
    what, limit = f"round {number - 1} to round {number}", run.config.alarms
    look = "look at some before you trust it"
    if abs(new_rate - rate) >= limit.correct_jump:
        yield Alarm("suspicious-jump", f"{what}: correct answers went from {rate:.1%} to {new_rate:.1%}; {look}")
    if tokens > 0 and new_tokens > 0 and not 1 / limit.length_ratio < new_tokens / tokens < limit.length_ratio:
        yield Alarm("suspicious-jump", f"{what}: answers went from {tokens:.0f} to {new_tokens:.0f} tokens; {look}")


def _verifier_errors(run: Run, number: int) -> Iterator[Alarm]:
    groups = run.ledger.artifacts().get(run.name(run.groups(number)))
    rows = groups.details.get("rollouts", 0) if groups else 0
    failed = groups.details.get("dropped", {}).get("verifier_error", 0) if groups and rows else 0
    if failed and failed / rows >= run.config.alarms.verifier_errors:
        yield Alarm(
            "verifier-errors",
            f"round {number}: {failed:,} of {rows:,} answers could not be judged ({failed / rows:.1%}); "
            f"{run.name(run.verdicts(number))} says why (outcome verifier_error)",
        )


def _truncated(run: Run, number: int) -> Iterator[Alarm]:
    folder = f"{run.name(run.rollouts(number))}/"
    parts = [entry for name, entry in run.ledger.artifacts().items() if name.startswith(folder)]
    rows, cut = sum(part.rows for part in parts), sum(part.details.get("truncated", 0) for part in parts)
    if cut and cut / rows >= run.config.alarms.truncated:
        limit = run.config.sampling.max_tokens
        yield Alarm(
            "truncated",
            f"round {number}: {cut / rows:.1%} of the answers were cut at {limit:,} tokens (sampling.max_tokens)",
        )


def _mismatch(run: Run, number: int) -> Iterator[Alarm]:
    entry = run.ledger.artifacts().get(run.name(run.mismatch(number)))
    if entry is None:
        return
    mean, allowed = entry.details["mean"], run.config.training.allowed_mismatch(entry.details.get("rounding"))
    # exactly 0 of 0 allowed is agreement
    if mean > 0 and mean >= run.config.alarms.mismatch * allowed:
        yield Alarm(
            "mismatch",
            f"round {number}: log-probs of engine and trainer differ by {mean:.2g} nats per token; {allowed:.2g} stops "
            "the run (training.max_mismatch)",
        )


Rule = Callable[[Run, int], Iterator[Alarm]]
RULES: Mapping[str, tuple[Rule, ...]] = {
    GROUPS.verb: (_jumps, _verifier_errors, _truncated),
    TRAINING.verb: (_mismatch,),
}
"""Rules by the verb after which their numbers are there."""


def _facts(run: Run, number: int) -> tuple[float, float] | None:
    """Share of correct answers among those that were judged, and mean response tokens."""
    if number < 0:
        return None
    artifacts, folder = run.ledger.artifacts(), f"{run.name(run.rollouts(number))}/"
    groups = artifacts.get(run.name(run.groups(number)))
    parts = [entry for name, entry in artifacts.items() if name.startswith(folder)]
    if groups is None or "dropped" not in groups.details or any("response_tokens" not in p.details for p in parts):
        return None
    dropped = groups.details["dropped"]
    # of those that were judged: a verifier that broke down is told elsewhere, and is no fall
    judged = groups.details["rollouts"] - dropped.get("missing_verdict", 0) - dropped.get("verifier_error", 0)
    rows = sum(part.rows for part in parts)
    if not judged or not rows:
        return None
    return groups.details["correct_rollouts"] / judged, sum(part.details["response_tokens"] for part in parts) / rows
