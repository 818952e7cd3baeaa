"""Answers of a round that recite problems which are only measured on, or each other (likeness.py). Pure."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from oapl_core.problems.likeness import OVERLAP_LIMIT, NearDuplicates, Overlap


@dataclass
class Likeness:
    """Likeness of a round's answers to evaluation problems and to each other."""

    answers: int = 0
    reciting: dict[str, tuple[str, float]] = field(default_factory=dict)
    """Rollout -> the evaluation problem whose statement it contains, and how much of its 13-word pieces."""
    copies: dict[str, str] = field(default_factory=dict)
    """Rollout -> another problem that was nearly given this very answer before."""


def likeness(
    answers: Iterable[tuple[str, str, str]], evaluation: Iterable[tuple[str, str]], similarity: float = 0.8
) -> Likeness:
    """Compare ``answers`` (rollout, problem, text) with ``evaluation`` (problem, statement) and with each other."""
    result, overlap, near = Likeness(), Overlap(evaluation), NearDuplicates(similarity)
    for rollout, problem, text in answers:
        result.answers += 1
        share, owner = overlap.largest(text)
        if owner is not None and share >= OVERLAP_LIMIT:
            result.reciting[rollout] = owner, share
        other = near.find(text)
        if other is None:
            near.add(problem, text)  # answers like one that is there are told by it
        elif other != problem:
            result.copies[rollout] = other
    return result
