"""What the arms of a comparison came to: pass@k with two kinds of spread, paired differences, and what it took.

Reads the arms' ledgers and evaluations, through tracks. Two questions, two numbers: *would other problems agree?*
is the 95 % interval from resampling problems, each with its mean over the seeds; *would another seed?* is the range of
the seeds' own means. A difference is paired: the same problems, the mean over seeds of both arms.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from oapl_core.comparing.folder import Arm, Comparison
from oapl_core.evaluation.pass_at_k import MeanWithInterval, mean_estimate, pass_at_k
from oapl_core.figures.tracks import BASE, Track, read_track
from oapl_core.reports.scores import Resampling, Score

_LAST_SHARE = 8
"""The entropy at the end is the mean over the last 1/8 of the steps."""


@dataclass(frozen=True)
class Means:
    """pass@k of one setting on one problem set, over problems and over seeds."""

    k: int
    all: MeanWithInterval
    """Of the means over seeds, with the interval over problems."""
    seeds: tuple[float, ...]
    """Mean of each seed."""
    by_problem: Mapping[str, float]
    resampling: Resampling

    @classmethod
    def of(cls, scores: Sequence[Score], k: int) -> "Means | None":
        """Of a seed's score each; over the problems with k judged answers from every seed. None without any."""
        counts = [score.judged_P for score in scores]
        shared = [p for p in counts[0] if all(one.get(p, (0, 0))[0] >= k for one in counts)]
        if not shared:
            return None
        by_seed = [[pass_at_k(*one[problem], k) for problem in shared] for one in counts]
        means = [_mean(values) for values in zip(*by_seed, strict=True)]
        resampling = scores[0].resampling
        estimate = mean_estimate(means, resampling.resamples, resampling.seed)
        by_problem = dict(zip(shared, means, strict=True))
        return cls(k, estimate, tuple(_mean(values) for values in by_seed), by_problem, resampling)

    def minus(self, other: "Means") -> MeanWithInterval | None:
        """How much higher it is than ``other`` on the problems that both have, paired."""
        shared = [problem for problem in self.by_problem if problem in other.by_problem]
        if not shared:
            return None
        gains = [self.by_problem[problem] - other.by_problem[problem] for problem in shared]
        return mean_estimate(gains, self.resampling.resamples, self.resampling.seed)


@dataclass(frozen=True)
class Result:
    """One arm, all its seeds."""

    label: str
    tracks: Sequence[Track]
    """Of the seeds that are measured."""
    failures: Sequence[tuple[Arm, str]]
    """Seeds that were not trained to their end, with the line that says why."""
    waiting: Sequence[Arm]
    """Seeds whose turn has not come."""
    training: Mapping[str, float | None]
    """Means over the trained seeds: entropy, kl, steps, sequences, tokens, seconds and what ``_training`` has more."""
    answers: Mapping[str, float | None]
    """Means over the measured seeds: mean tokens and truncated share of held-out answers."""

    def scores(self, problem_set: str) -> list[Score]:
        """Of the newest checkpoint of every seed."""
        return [track.milestones[-1].scores[problem_set] for track in self.tracks]

    def base_scores(self, problem_set: str) -> list[Score]:
        """Of the checkpoint that all arms started from, once for each seed."""
        return [track.milestones[-2].scores[problem_set] for track in self.tracks]

    def means(self, problem_set: str, k: int) -> Means | None:
        """None if nothing is measured."""
        scores = self.scores(problem_set)
        return Means.of(scores, k) if scores else None


def read_results(comparison: Comparison) -> list[Result]:
    """Every arm, in the order of the file.

    Raises:
        DataError: a file is broken, or an arm was trained on other data than the others.
    """
    return [
        _result(arm.label, [one for one in comparison.arms if one.label == arm.label]) for arm in comparison.config.arms
    ]


def _result(label: str, arms: Sequence[Arm]) -> Result:
    trained = [arm for arm in arms if arm.is_trained]
    measured = [arm for arm in trained if arm.is_measured]
    failures = [(arm, arm.failure) for arm in arms if arm.failure and arm not in trained]
    failed = [arm for arm, _ in failures]
    waiting = [arm for arm in arms if arm not in measured and arm not in failed]
    tracks = [read_track(arm.run(), label) for arm in measured]
    return Result(
        label,
        tracks,
        [(arm, text) for arm, text in failures if text],
        waiting,
        _averaged(_training(arm) for arm in trained),
        _averaged(_answers(arm) for arm in measured),
    )


def _training(arm: Arm) -> Mapping[str, float | None]:
    run, epochs = arm.run(), range(1, arm.config.rounds[arm.round].epochs + 1)
    artifacts = run.ledger.artifacts()
    details = [artifacts[run.name(run.checkpoint(arm.round, epoch))].details for epoch in epochs]
    track = read_track(run, arm.label)
    steps = [
        step.entropy if track.has_entropy else step.estimated_entropy for step in track.steps if step.round == arm.round
    ]
    last = [one for one in steps[-max(1, len(steps) // _LAST_SHARE) :] if one is not None]
    processes = [entry.seconds for entry in run.ledger.stages() if entry.stage == arm.training.label]
    return {
        "entropy": _mean(last) if last else None,
        "has_entropy": float(track.has_entropy),
        "kl": details[-1].get("kl"),
        "steps": sum(one.get("steps", 0) for one in details),
        "sequences": sum(one.get("sequences", 0) for one in details),
        "step_s": sum(one.get("epoch_s", 0.0) for one in details) / max(1, sum(one.get("steps", 0) for one in details)),
        "training_s": sum(processes),
    }


def _answers(arm: Arm) -> Mapping[str, float | None]:
    run = arm.run()
    details = run.ledger.artifacts()[run.name(run.evaluation())].details
    measured = details.get("heldout", {}).get(details.get("chosen"), {})
    answers = measured.get("answers")
    return {
        "tokens": measured.get("tokens", {}).get("mean"),
        "truncated": measured["truncated"] / answers if answers else None,
        "epoch": details.get("chosen_epoch"),
    }


def _averaged(each: Iterator[Mapping[str, float | None]]) -> dict[str, float | None]:
    """Means of the numbers that every one has."""
    rows = list(each)
    values = {key: [row[key] for row in rows] for key in (rows[0] if rows else ())}
    known = {key: [value for value in column if value is not None] for key, column in values.items()}
    return {key: _mean(column) if len(column) == len(rows) else None for key, column in known.items()}


def problem_sets(results: Sequence[Result]) -> list[str]:
    """Those that were measured."""
    return list(dict.fromkeys(name for one in results for track in one.tracks for name in track.benchmarks))


def largest_k(results: Sequence[Result], problem_set: str) -> int:
    """Answers that every measured arm has to some problem."""
    return min((score.samples for one in results for score in one.scores(problem_set)), default=1)


def base_means(results: Sequence[Result], problem_set: str, k: int) -> Means | None:
    """The common checkpoint, from an arm with the most seeds; None before anything is measured."""
    most = max(results, key=lambda one: len(one.tracks))
    scores = most.base_scores(problem_set) if most.tracks else []
    return Means.of(scores, k) if scores else None


def base_name(comparison: Comparison) -> str:
    """What the common checkpoint is called."""
    return BASE if comparison.config.round == 0 else f"round {comparison.config.round - 1}"


def ranked(results: Sequence[Result], problem_set: str) -> list[Result]:
    """The highest pass@1 first; arms that are not measured last."""

    def height(one: Result) -> float:
        means = one.means(problem_set, 1)
        return -means.all.mean if means else 1.0

    return sorted(results, key=height)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
