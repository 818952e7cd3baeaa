"""Results of a comparison's arms: pass@k with two kinds of spread, paired differences, and what training took.

Reads the arms' ledgers and evaluations, through tracks. Two questions have two numbers. *Would other problems agree?*
is the 95 % interval from resampling problems, each with its mean over the seeds. *Would another seed?* is the range of
the seeds' own means. A difference is paired: the same problems, the mean over seeds of both arms.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from oapl_core.evaluation.pass_at_k import MeanWithInterval, mean_estimate, paired_difference, pass_at_k_by_problem
from oapl_core.evaluation.scores import Resampling, Score
from oapl_core.run_folder.run_record import BASE, RunRecord
from oapl_extras.compare.folder import Arm, Comparison
from oapl_extras.compare.tracks import Track, read_track

_LAST_SHARE = 8
"""The entropy at the end is the mean over the last 1/8 of the steps."""


@dataclass(frozen=True)
class Means:
    """pass@k, or the mean reward, of one setting on one problem set, over problems and over seeds."""

    all: MeanWithInterval
    """Mean of the means over seeds, with the interval over problems."""
    seeds: tuple[float, ...]
    """Mean of each seed."""
    by_problem: Mapping[str, float]
    resampling: Resampling

    @classmethod
    def of(cls, scores: Sequence[Score], k: int) -> "Means | None":
        """Average each seed's score, over the problems with k judged answers from every seed. None without any."""
        return cls._over([pass_at_k_by_problem(score.judged_P, k) for score in scores], scores[0].resampling)

    @classmethod
    def of_rewards(cls, scores: Sequence[Score]) -> "Means | None":
        """Average the mean reward of each seed; None without `[reward]`."""
        return cls._over([score.rewards_P or {} for score in scores], scores[0].resampling)

    @classmethod
    def _over(cls, each: Sequence[Mapping[str, float]], resampling: Resampling) -> "Means | None":
        shared = [problem for problem in each[0] if all(problem in one for one in each)]
        if not shared:
            return None
        by_problem = {problem: _mean([one[problem] for one in each]) for problem in shared}
        # the unit of resampling is the problem: seeds of one arm answer the same ones, so they are no further problems
        estimate = mean_estimate(list(by_problem.values()), resampling.resamples, resampling.seed)
        seeds = tuple(_mean([one[problem] for problem in shared]) for one in each)
        return cls(estimate, seeds, by_problem, resampling)

    def minus(self, other: "Means") -> MeanWithInterval | None:
        """Estimate how much higher it is than ``other``, paired on problems that both have; None if they share none."""
        resampling = self.resampling
        paired = paired_difference(other.by_problem, self.by_problem, resampling.resamples, resampling.seed)
        return paired.change if paired else None


@dataclass(frozen=True)
class Result:
    """One arm of a comparison: what all its seeds reached, did and took."""

    label: str
    tracks: Sequence[Track]
    """Tracks of the seeds that are measured."""
    failures: Sequence[tuple[Arm, str]]
    """Seeds that were not trained to their end, with the line that says why."""
    waiting: Sequence[Arm]
    """Seeds whose turn has not come."""
    training: Mapping[str, float | None]
    """Means over the trained seeds: entropy, kl, steps, sequences, tokens, seconds and what ``_training`` has more."""
    answers: Mapping[str, float | None]
    """Means over the measured seeds: mean tokens and truncated share of held-out answers."""

    def scores(self, problem_set: str) -> list[Score]:
        """List the scores of the newest checkpoint of every seed."""
        return [track.milestones[-1].scores[problem_set] for track in self.tracks]

    def base_scores(self, problem_set: str) -> list[Score]:
        """List the scores of the checkpoint that all arms started from, once for each seed."""
        return [track.milestones[-2].scores[problem_set] for track in self.tracks]

    def means(self, problem_set: str, k: int) -> Means | None:
        """None if nothing is measured."""
        scores = self.scores(problem_set)
        return Means.of(scores, k) if scores else None

    def rewards(self, problem_set: str) -> Means | None:
        """Return the mean reward; None without `[reward]`, or if nothing is measured."""
        scores = self.scores(problem_set)
        return Means.of_rewards(scores) if scores else None


def read_results(comparison: Comparison) -> list[Result]:
    """Read the result of every arm, in the order of the file.

    Raises:
        DataError: a file is broken, or an arm was trained on other data than the others.
    """
    return [
        _result(arm.label, [one for one in comparison.arms if one.label == arm.label]) for arm in comparison.config.arms
    ]


def _result(label: str, arms: Sequence[Arm]) -> Result:
    trained = [arm for arm in arms if arm.is_trained]
    measured = [arm for arm in trained if arm.is_measured]
    # an arm that failed once and was trained later is trained: its newest state counts
    failures = [(arm, why) for arm in arms if arm not in trained and (why := arm.failure)]
    over = [*measured, *(arm for arm, _ in failures)]
    return Result(
        label,
        tracks=[read_track(arm.run(), label) for arm in measured],
        failures=failures,
        waiting=[arm for arm in arms if arm not in over],
        training=_averaged(_training(arm) for arm in trained),
        answers=_averaged(_answers(arm) for arm in measured),
    )


def _training(arm: Arm) -> Mapping[str, float | None]:
    run, epochs = arm.run(), range(1, arm.config.rounds[arm.round].epochs + 1)
    record = RunRecord(run)
    details = [record.details(run.checkpoint(arm.round, epoch)) for epoch in epochs]
    # the track has the parent's rounds too, whose steps are not the arm's own
    track = read_track(run, arm.label)
    entropies = [
        step.entropy if track.has_entropy else step.estimated_entropy for step in track.steps if step.round == arm.round
    ]
    last = [one for one in entropies[-max(1, len(entropies) // _LAST_SHARE) :] if one is not None]
    steps, sequences, seconds = (sum(one.get(key, 0) for one in details) for key in ("steps", "sequences", "epoch_s"))
    # every process counts, also one that was killed and continued: that is what the arm took
    processes = [entry.seconds for entry in record.stages if entry.stage == arm.training.label]
    return {
        "entropy": _mean(last) if last else None,
        "has_entropy": float(track.has_entropy),
        "kl": details[-1].get("kl"),
        "steps": steps,
        "sequences": sequences,
        "step_s": seconds / max(1, steps),
        "training_s": sum(processes),
    }


def _answers(arm: Arm) -> Mapping[str, float | None]:
    run = arm.run()
    details = RunRecord(run).details(run.evaluation())
    # the chosen epoch's alone: other epochs may be measured only to be compared with it
    measured = details.get("heldout", {}).get(details.get("chosen"), {})
    answers = measured.get("answers")
    return {
        "tokens": measured.get("tokens", {}).get("mean"),
        "truncated": measured["truncated"] / answers if answers else None,
        "epoch": details.get("chosen_epoch"),
    }


def _averaged(each: Iterator[Mapping[str, float | None]]) -> dict[str, float | None]:
    """Average the numbers that every one has."""
    rows = list(each)
    # a mean over some of the seeds would be compared with one over all of them
    known = {key: [value for row in rows if (value := row[key]) is not None] for key in (rows[0] if rows else ())}
    return {key: _mean(values) if len(values) == len(rows) else None for key, values in known.items()}


def problem_sets(results: Sequence[Result]) -> list[str]:
    """List the problem sets that some arm was measured on, in the order of the evaluation."""
    return list(dict.fromkeys(name for one in results for track in one.tracks for name in track.benchmarks))


def largest_k(results: Sequence[Result], problem_set: str) -> int:
    """Return the largest number of answers that every measured arm has to some problem."""
    return min((score.samples for one in results for score in one.scores(problem_set)), default=1)


def base_means(results: Sequence[Result], problem_set: str, k: int) -> Means | None:
    """Average the common checkpoint's scores, from an arm with the most seeds; None before anything is measured."""
    # the base answers once for each seed; an arm with more seeds says more of it
    most = max(results, key=lambda one: len(one.tracks))
    scores = most.base_scores(problem_set) if most.tracks else []
    return Means.of(scores, k) if scores else None


def base_name(comparison: Comparison) -> str:
    """Return the name of the common checkpoint."""
    return BASE if comparison.config.round == 0 else f"round {comparison.config.round - 1}"


def ranked(results: Sequence[Result], problem_set: str) -> list[Result]:
    """Sort results, the highest pass@1 first; arms that are not measured last."""

    def height(one: Result) -> float:
        means = one.means(problem_set, 1)
        # sorted() puts small numbers first and keeps the order of the file among equals
        return -means.all.mean if means else 1.0

    return sorted(results, key=height)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
