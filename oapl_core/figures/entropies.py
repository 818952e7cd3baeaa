"""The policy's entropy over training: exact where steps record it, else an earlier version's estimate; pure.

Tracks in, series out, as in series.py. Exact is -sum_v p_v ln p_v over the vocabulary, mean over the response tokens of
a step: over states that the behavior policy reached. Where a round was sampled, the mean of -ln behavior estimates the
entropy over the policy's own states.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from oapl_core.figures.series import Point, Series, training, window, with_means
from oapl_core.figures.tracks import Track, TrainingStep

EXACT, ESTIMATED, SAMPLING = "entropy", "entropy, estimated", "entropy of the sampling policy"


@dataclass(frozen=True)
class Measured:
    """One kind of number over the optimiser steps of the runs that have it."""

    meaning: str
    """For a caption."""
    suffix: str
    """Of a line's name."""
    width: int
    """Steps that a moving mean covers."""
    each: list[Series]
    """Of each step, and the means over seeds."""
    smooth: list[Series]
    """Moving means of them."""


def measured(tracks: Sequence[Track], parts: int, estimate_parts: int) -> list[Measured]:
    """What there is; a run is in the first kind that it has, so that no mean has both.

    Args:
        tracks: the runs.
        parts: a moving mean of exact numbers covers one of so many parts of the longest run.
        estimate_parts: the same of estimates, which are noisier.
    """
    exact, others = ([t for t in tracks if t.has_entropy is has] for has in (True, False))
    found = [
        _measured(
            exact,
            EXACT,
            "",
            lambda step: step.entropy,
            parts,
            "the policy's exact entropy, -sum p ln p over the vocabulary, at the tokens of each step's rollouts: over "
            "states that b reached, not the policy itself",
        ),
        _measured(
            others,
            ESTIMATED,
            ", estimated",
            lambda step: step.estimated_entropy,
            estimate_parts,
            "what an earlier version recorded, mean of -(policy / b) ln policy of the sampled tokens; unbiased in a "
            "round's first epoch; where it is wide and jumps, the policy has left b so far that few tokens decide",
        ),
    ]
    return [one for one in found if one.each]


def _measured(
    tracks: Sequence[Track],
    name: str,
    suffix: str,
    value: Callable[[TrainingStep], float | None],
    parts: int,
    meaning: str,
) -> Measured:
    width = window(tracks, parts)
    return Measured(meaning, suffix, width, training(tracks, name, value), training(tracks, name, value, width))


def sampling_entropy(tracks: Sequence[Track]) -> list[Series]:
    """What the entropy really was when each round was sampled, at the step whose weights sampled it.

    Mean of -ln behavior over the tokens of the round's first epoch: sampled and scored by the same policy, so without
    bias but for the filter, which dropped some groups.
    """

    def of(track: Track) -> Iterator[Series]:
        points = []
        for number, mine in groupby(track.steps, lambda step: step.round):
            first = [(s.sampling_entropy, s.response_tokens) for s in mine if s.epoch == 1]
            known = [(entropy, tokens) for entropy, tokens in first if entropy is not None]
            total = sum(tokens for _, tokens in known)
            if total:
                mean = sum(entropy * tokens for entropy, tokens in known) / total
                x = track.steps_before(track.config.sampling_round(number))
                points.append(Point(f"round {number}", x, mean, mean, mean))
        if points:
            yield Series(track.label, (track.run,), SAMPLING, None, "", tuple(points))

    return with_means(tracks, of)
