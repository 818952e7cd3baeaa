"""Alarms about things that a person should look at: every rule, by the stage after which it can speak. Pure.

Reads the ledger alone. A round may suddenly solve nearly everything, or give answers twice or half as long. It may have
found a hole in a verifier, a broken prompt or other problems. Thresholds: settings/operation/alarms.py.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from oapl_core.planning.stages import GROUPS, TRAINING
from oapl_core.run_folder.run_record import RunRecord


@dataclass(frozen=True)
class Alarm:
    """One rule that was broken."""

    rule: str
    """Prefect's event is called ``oapl.<rule>``."""
    line: str


def alarms(record: RunRecord, number: int, after: str | None = None) -> Iterator[Alarm]:
    """Yield the alarms of round ``number``, or only of the rules that speak ``after`` a verb; most rounds have none."""
    for verb, rules in RULES.items():
        if after in (None, verb):
            for rule in rules:
                yield from rule(record, number)


def _jumps(record: RunRecord, number: int) -> Iterator[Alarm]:
    """Yield an alarm for each jump from round ``number`` - 1 to ``number``; none where either is not that far."""
    before, now = (_facts(record, k) for k in (number - 1, number))
    if number == 0 or before is None or now is None:
        return
    (rate, tokens), (new_rate, new_tokens) = before, now
    what, limit = f"round {number - 1} to round {number}", record.run.config.alarms
    look = "look at some before you trust it"
    if abs(new_rate - rate) >= limit.correct_jump:
        yield Alarm("suspicious-jump", f"{what}: correct answers went from {rate:.1%} to {new_rate:.1%}; {look}")
    if tokens > 0 and new_tokens > 0 and not 1 / limit.length_ratio < new_tokens / tokens < limit.length_ratio:
        yield Alarm("suspicious-jump", f"{what}: answers went from {tokens:.0f} to {new_tokens:.0f} tokens; {look}")


def _verifier_errors(record: RunRecord, number: int) -> Iterator[Alarm]:
    details = record.details(record.run.groups(number))
    rows, failed = details.get("rollouts", 0), details.get("dropped", {}).get("verifier_error", 0)
    if failed and rows and failed / rows >= record.run.config.alarms.verifier_errors:
        yield Alarm(
            "verifier-errors",
            f"round {number}: {failed:,} of {rows:,} answers could not be judged ({failed / rows:.1%}); "
            f"{record.run.name(record.run.verdicts(number))} says why (outcome verifier_error)",
        )


def _truncated(record: RunRecord, number: int) -> Iterator[Alarm]:
    parts = record.entries_in(record.run.rollouts(number))
    rows, cut = sum(part.rows for part in parts), sum(part.details.get("truncated", 0) for part in parts)
    if cut and cut / rows >= record.run.config.alarms.truncated:
        limit = record.run.config.of_round(number).sampling.max_tokens
        yield Alarm(
            "truncated",
            f"round {number}: {cut / rows:.1%} of the answers were cut at {limit:,} tokens (sampling.max_tokens)",
        )


def _mismatch(record: RunRecord, number: int) -> Iterator[Alarm]:
    entry = record.entry(record.run.mismatch(number))
    if entry is None:
        return
    training = record.run.config.of_round(number).training
    mean, allowed = entry.details["mean"], training.allowed_mismatch(entry.details.get("rounding"))
    # exactly 0 of 0 allowed is agreement
    if mean > 0 and mean >= record.run.config.alarms.mismatch * allowed:
        yield Alarm(
            "mismatch",
            f"round {number}: log-probs of engine and trainer differ by {mean:.2g} nats per token; {allowed:.2g} stops "
            "the run (training.max_mismatch)",
        )


Rule = Callable[[RunRecord, int], Iterator[Alarm]]
RULES: Mapping[str, tuple[Rule, ...]] = {
    GROUPS.verb: (_jumps, _verifier_errors, _truncated),
    TRAINING.verb: (_mismatch,),
}
"""Rules by the verb after which their numbers are there."""


def _facts(record: RunRecord, number: int) -> tuple[float, float] | None:
    """Share of correct answers among those that were judged, and mean response tokens."""
    counted = record.correct_and_judged(number) if number >= 0 else None
    parts = record.entries_in(record.run.rollouts(number)) if counted else []
    rows = sum(part.rows for part in parts)
    if not counted or not counted[1] or not rows or any("response_tokens" not in part.details for part in parts):
        return None
    return counted[0] / counted[1], sum(part.details["response_tokens"] for part in parts) / rows
