"""What a page of claims asks, and what each answer rests on. Reads and writes nothing.

An answer is the criterion's, which was written before the arms were run and takes the bootstrap's interval. Beside it
stand two probabilities, of the bootstrap and of Student's t over initialisations, after Holm's correction over all
questions of the page: of thirty intervals of 95 % one or two miss by chance.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from bench.claims.bootstrap import Estimate, holm

BASES, NOT_RUN = 3, "not run on three bases"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Markdown."""
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


@dataclass(frozen=True)
class Asked:
    """A question, its answer by the criterion, and what the answer rests on."""

    claim: str
    question: str
    verdict: str
    found: Estimate | None = None
    null: float = 0.0
    """What ``found`` is held against."""
    signs: int = 0
    """Where there is no number: initialisations that all agree, each by itself."""
    instead: str = "signs alone"
    """What stands in the number's place."""

    @property
    def probabilities(self) -> tuple[float, float]:
        """By the bootstrap and by t; of signs alone by the sign test, of nothing 1."""
        if self.found is None:
            return (2.0 ** (1 - self.signs),) * 2 if self.signs else (1.0, 1.0)
        return self.found.p_of_bootstrap(self.null), self.found.p_of_t(self.null)


def asked_table(rows: Sequence[Asked]) -> str:
    """A page's summary."""
    by_bootstrap, by_t = (holm(own) for own in zip(*(row.probabilities for row in rows), strict=True))
    head = ["", "asked", "by its criterion", "points", "held against", "p, bootstrap", "p, t"]
    made = []
    for row, *both in zip(rows, by_bootstrap, by_t, strict=True):
        points = [row.instead, ""]
        if row.found:
            points = [row.found.shown(sign="+"), f"{100 * row.null:.0f}"]
        made.append([row.claim, row.question, row.verdict, *points, *(f"{p:.3f}" for p in both)])
    return table(head, made)


def verdict(found: Estimate | None, yes: str = "holds", no: str = "does not hold", open_: str = "not decided") -> str:
    """By the side of 0 on which the bootstrap's interval lies."""
    if found is None or len(found.by_start) < BASES:
        return NOT_RUN
    return yes if found.low > 0 else no if found.high < 0 else open_


def sided(claim: str, question: str, found: Estimate | None) -> Asked:
    """Whether something holds."""
    return Asked(claim, question, verdict(found), found)


def better(claim: str, question: str, found: Estimate | None) -> Asked:
    """Whether one is better or worse than the other."""
    return Asked(claim, question, verdict(found, "better", "worse", "no difference shown"), found)


def collapsed(claim: str, question: str, found: Estimate | None) -> Asked:
    """Claim a's criterion: held against 0 where it fell by 10 points, and against -10 where it did not."""
    fell = found is not None and found.mean <= -0.1
    said = NOT_RUN
    if found is not None and len(found.by_start) >= BASES:
        said = "collapses" if fell and found.high < 0 else "does not collapse" if found.low > -0.1 else "not decided"
    return Asked(claim, question, said, found, 0.0 if fell else -0.1)


def stable(claim: str, question: str, found: Estimate | None) -> Asked:
    """Claim a's criterion for OAPL: it loses less than 5 points."""
    said = NOT_RUN
    if found is not None and len(found.by_start) >= BASES:
        said = "stable" if found.low > -0.05 else "not stable" if found.high < -0.05 else "not decided"
    return Asked(claim, question, said, found, -0.05)
