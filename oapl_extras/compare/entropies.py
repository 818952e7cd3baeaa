"""The policy's entropy over training: exact where steps record it, else an earlier version's estimate; pure.

Tracks in, series out, as in series.py. Exact is -sum_v p_v ln p_v over the vocabulary, mean over the response tokens of
a step: over states that the behaviour policy reached. Where a round was sampled, the mean of -ln behavior estimates the
entropy over the policy's own states.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from oapl_extras.compare.series import Point, Series, training, window, with_means
from oapl_extras.compare.tracks import Track, TrainingStep

EXACT, ESTIMATED, SAMPLING = "entropy", "entropy, estimated", "entropy of the behaviour policy"
_MEANING_EXACT = (
    "the policy's exact entropy, -sum p ln p over the vocabulary, at the tokens of each step's rollouts: over states "
    "that b reached, not the policy itself"
)
_MEANING_ESTIMATED = (
    "what an earlier version recorded, mean of -(policy / b) ln policy of the sampled tokens; unbiased in a round's "
    "first epoch; where it is wide and jumps, the policy has left b so far that few tokens decide"
)


@dataclass(frozen=True)
class Measured:
    """One kind of number over the optimiser steps of the runs that have it."""

    meaning: str
    """Meaning of the number, for a caption."""
    suffix: str
    """Suffix of a line's name."""
    width: int
    """Steps that a moving mean covers."""
    each: list[Series]
    """Numbers of each step, and the means over seeds."""
    smooth: list[Series]
    """Moving means of them."""


def measured(tracks: Sequence[Track], parts: int, estimate_parts: int) -> list[Measured]:
    """Collect the kinds of number there are; a run is in the first kind that it has, so that no mean has both.

    Args:
        tracks: the runs.
        parts: a moving mean of exact numbers covers one of so many parts of the longest run.
        estimate_parts: the same of estimates, which are noisier.
    """
    # by run, not by step: one line must not change its meaning on the way
    exact, others = ([t for t in tracks if t.has_entropy is has] for has in (True, False))
    kinds = [
        (exact, EXACT, "", _exact, parts, _MEANING_EXACT),
        (others, ESTIMATED, ", estimated", _estimated, estimate_parts, _MEANING_ESTIMATED),
    ]
    shown = []
    for mine, name, suffix, value, most, meaning in kinds:
        width, each = window(mine, most), training(mine, name, value)
        if each:
            shown.append(Measured(meaning, suffix, width, each, training(mine, name, value, width)))
    return shown


def _exact(step: TrainingStep) -> float | None:
    return step.entropy


def _estimated(step: TrainingStep) -> float | None:
    return step.estimated_entropy


def sampling_entropy(tracks: Sequence[Track]) -> list[Series]:
    """Measure the true entropy when each round was sampled, at the step whose weights sampled it.

    Mean of -ln behavior over the tokens of the round's first epoch. The same policy sampled and scored them, so there
    is no bias but for the filter, which dropped some groups.
    """

    def of(track: Track) -> Iterator[Series]:
        points = []
        for number, mine in groupby(track.steps, lambda step: step.round):
            # later epochs score the same tokens by a policy that has moved on
            first = [(s.sampling_entropy, s.response_tokens) for s in mine if s.epoch == 1]
            known = [(entropy, tokens) for entropy, tokens in first if entropy is not None]
            total = sum(tokens for _, tokens in known)
            if total:
                # each step's number is a mean over its tokens, so steps with more tokens count more
                mean = sum(entropy * tokens for entropy, tokens in known) / total
                # with a pipeline the round was sampled by weights of an earlier round than the one before
                x = track.steps_before(track.config.sampling_round(number))
                points.append(Point(f"round {number}", x, mean, mean, mean))
        if points:
            yield Series(track.label, (track.run,), SAMPLING, None, "", tuple(points))

    return with_means(tracks, of)
