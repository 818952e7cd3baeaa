"""Jumps between two rounds that training seldom makes: of the share of correct answers, or of their length. Pure.

Reads the ledger alone. A round that suddenly solves nearly everything, or whose answers are suddenly twice as long, or
half, may have found a hole in a verifier, a broken prompt or other problems. The demo's real rise is 45 points.
"""

from collections.abc import Iterator

from oapl_core.run_folder.run import Run

PASS_RATE = 0.5
"""Of all judged answers, from one round to the next."""
LENGTH = 2.0
"""Ratio of mean response tokens."""


def jumps(run: Run, number: int) -> Iterator[str]:
    """A line for each jump from round ``number`` - 1 to ``number``; none where either is not that far."""
    before, now = (_facts(run, k) for k in (number - 1, number))
    if number == 0 or before is None or now is None:
        return
    (rate, tokens), (new_rate, new_tokens) = before, now
    what = f"round {number - 1} to round {number}"
    if abs(new_rate - rate) >= PASS_RATE:
        yield f"{what}: correct answers went from {rate:.1%} to {new_rate:.1%}; look at some before you trust it"
    if tokens > 0 and new_tokens > 0 and not 1 / LENGTH < new_tokens / tokens < LENGTH:
        yield f"{what}: answers went from {tokens:.0f} to {new_tokens:.0f} tokens; look at some before you trust it"


def _facts(run: Run, number: int) -> tuple[float, float] | None:
    """Share of correct answers among those that were judged, and mean response tokens."""
    if number < 0:
        return None
    artifacts, folder = run.ledger.artifacts(), f"{run.name(run.rollouts(number))}/"
    groups = artifacts.get(run.name(run.groups(number)))
    parts = [entry for name, entry in artifacts.items() if name.startswith(folder)]
    if groups is None or any("response_tokens" not in part.details for part in parts):
        return None
    dropped = groups.details["dropped"]
    # of those that were judged: a verifier that broke down is told elsewhere, and is no fall
    judged = groups.details["rollouts"] - dropped.get("missing_verdict", 0) - dropped.get("verifier_error", 0)
    rows = sum(part.rows for part in parts)
    if not judged or not rows:
        return None
    return groups.details["correct_rollouts"] / judged, sum(part.details["response_tokens"] for part in parts) / rows
