"""A run as figures see it: its measured checkpoints with what they cost, and its optimiser steps one after the other.

Reads run.json, the ledger, training_metrics.jsonl of each epoch, and the held-out rows of the evaluation (its finished
parts while it runs), without their texts. Rollouts are counted from the ledger: a run whose rollouts were removed
gives the same numbers. What is not there yet is said in ``Track.missing``.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from oapl_core import tables
from oapl_core.evaluation.scores import Resampling, Score, score
from oapl_core.run_folder.run import METRICS_FILE, Run
from oapl_core.run_folder.run_record import (
    BASE,
    ONE_SET,
    RunRecord,
    answers,
    frame,
    metric_lines,
    parts_below,
    verdicts_on,
)
from oapl_core.settings.experiment import Experiment

if TYPE_CHECKING:
    import polars as pl

METRICS = ("right_share", "entropy", "token_entropy", "token_log_ratio", "response_tokens")
"""Metrics of a training step (docs/objectives.md); each may be missing in what an earlier version wrote."""
_OLD_ENTROPY = "policy_entropy"
"""Metric of earlier versions: mean of -(policy / behavior) ln policy of the sampled tokens, noisy and off-policy."""
_COLUMNS = ("checkpoint", "policy_hash", "split", "problem_id", "reward", "correct", "finish_reason")


@dataclass(frozen=True)
class Milestone:
    """A checkpoint that answered held-out problems."""

    name: str
    """``base``, ``round 0``, ``round 1``: the same word in every run, whichever epoch was chosen. The evaluation's
    words in brackets stay where an epoch was chosen by what is reported."""
    policy_hash: str
    steps: int | None
    """Optimiser steps of the run until it was made; None where their metrics are missing."""
    rollouts: int
    """Rollouts sampled to train it, all rounds so far, also those that were dropped."""
    scores: Mapping[str, Score]
    """Problem set -> what it solved there."""


@dataclass(frozen=True)
class TrainingStep:
    """One optimiser step; what its line does not say is None."""

    number: int
    """Number in the run, from 1; rounds follow each other."""
    round: int
    epoch: int
    right_share: float | None
    """Share of correct answers among its rollouts, which an earlier policy sampled."""
    entropy: float | None
    """The policy's, exact, mean over the tokens of its rollouts, nats."""
    estimated_entropy: float | None
    """An estimate of the same, where an earlier version wrote no other."""
    sampling_entropy: float | None
    """Mean of -ln behavior of the same tokens, nats."""
    response_tokens: int


@dataclass(frozen=True)
class Track:
    """One run as figures see it: what its checkpoints reached, and every optimiser step."""

    label: str
    """Name in figures; runs with the same label are seeds of one setting."""
    run: str
    """Name of its folder."""
    config: Experiment
    milestones: Sequence[Milestone]
    """Milestones in the order in which they were made."""
    steps: Sequence[TrainingStep]
    rollouts: int
    """Number of rollouts sampled so far."""
    missing: Sequence[str] = field(default=())

    @property
    def benchmarks(self) -> list[str]:
        """Problem sets with held-out measurements."""
        return list(dict.fromkeys(name for one in self.milestones for name in one.scores))

    @property
    def has_entropy(self) -> bool:
        """Whether steps record the exact entropy; else there may be an estimate."""
        return any(step.entropy is not None for step in self.steps)

    def steps_before(self, number: int) -> int:
        """Optimiser steps of the rounds before round ``number``."""
        return sum(step.round < number for step in self.steps)


def read_track(run: Run, label: str) -> Track:
    """Read what there is of ``run`` so far.

    Raises:
        DataError: a file exists but is broken, or an evaluated checkpoint is none of this run.
    """
    record = RunRecord(run)
    sampled = [record.rollouts_sampled(number) for number in range(len(run.config.rounds))]
    steps = tuple(_steps(record))
    rows = _heldout_rows(record)
    milestones = () if rows is None else tuple(_milestones(record, rows, sampled, steps))
    missing = tuple(f"{run.root.name}: {text}" for text in _missing(record, sampled, milestones, steps))
    return Track(label, run.root.name, run.config, milestones, steps, sum(sampled), missing)


def _steps(record: RunRecord) -> Iterator[TrainingStep]:
    before = 0
    for number, epoch in record.trained_epochs:
        for line in metric_lines(record.run.checkpoint(number, epoch) / METRICS_FILE):
            before += 1
            right_share, entropy, cross_entropy, log_ratio, tokens = (line.get(name) for name in METRICS)
            # -ln behavior = -ln policy + (ln policy - ln behavior), each of them a mean over the step's tokens
            of_behavior = None if cross_entropy is None or log_ratio is None else cross_entropy + log_ratio
            estimate = line.get(_OLD_ENTROPY)
            yield TrainingStep(before, number, epoch, right_share, entropy, estimate, of_behavior, int(tokens or 0))


def _heldout_rows(record: RunRecord) -> "pl.DataFrame | None":
    """Read tables.EVALUATIONS of the held-out split with ``benchmark`` beside; no texts. None: nothing is measured yet.

    While the evaluation runs, these are the checkpoints that have answered every problem.
    """
    import polars as pl

    run, heldout = record.run, ("split", ("heldout",))
    whole = run.evaluation()
    if record.entry(whole) and whole.exists():
        rows = frame([whole], tables.EVALUATIONS, _COLUMNS, heldout)
    elif parts := _judged_parts(record):
        rows = pl.concat(answers(part).with_columns(checkpoint=pl.lit(label)) for part, label in parts)
        # a checkpoint with some of its answers would be measured on the problems that happened to come first
        asked = tables.read_table(run.prompts, tables.PROMPTS, ("problem_id", "split"), heldout)
        rows = rows.filter(pl.col("problem_id").n_unique().over("checkpoint") == len(asked))
    else:
        return None
    named = pl.col("problem_id").replace_strict(record.sources, default=ONE_SET, return_dtype=pl.String)
    return rows.with_columns(benchmark=named) if len(rows) else None


def _judged_parts(record: RunRecord) -> list[tuple[Path, str]]:
    """List parts of held-out rollouts that have verdicts, each with its checkpoint."""
    found = list[tuple[Path, str]]()
    run = record.run
    places = map(run.evaluations, run.config.evaluated_rounds)
    for part in (part for place in places for part in parts_below(place)):
        label, _, split = part.parents[1].name.rpartition("_")
        if split == "heldout" and record.entry(part) and record.entry(verdicts_on(part)):
            found.append((part, label.replace("_", " ")))
    return found


def _milestones(
    record: RunRecord, rows: "pl.DataFrame", sampled: Sequence[int], steps: Sequence[TrainingStep]
) -> Iterator[Milestone]:
    resampling = Resampling.of(record.run.config)
    scores: dict[str, dict[str, Score]] = {}
    for (benchmark,), mine in rows.group_by("benchmark", maintain_order=True):
        for one in score(mine, resampling):
            scores.setdefault(one.checkpoint, {})[str(benchmark)] = one
    hashes = {checkpoint: next(iter(of_set.values())).policy_hash for checkpoint, of_set in scores.items()}
    places = {checkpoint: _place(record, checkpoint, made) for checkpoint, made in hashes.items()}
    end = record.details(record.run.evaluation())
    chosen = str(end.get("chosen"))
    if chosen in places and end.get("chosen_on") == "heldout":
        # other epochs of its round answered held-out problems only to be compared with it
        scores = {c: s for c, s in scores.items() if c == chosen or places[c][0] != places[chosen][0]}
    rounds = [places[checkpoint][0] for checkpoint in scores]
    for checkpoint in sorted(scores, key=lambda name: places[name]):
        number, epoch = places[checkpoint]
        # an epoch chosen by what is reported must never look like one chosen on validation
        warning = checkpoint[checkpoint.find(" (") :] if " (" in checkpoint else ""
        # while the evaluation runs, a round may have two epochs here, which keep names of their own
        name = f"round {number}{warning}" if rounds.count(number) == 1 else checkpoint
        spent = _steps_until(steps, number, epoch)
        name = checkpoint if number < 0 else name
        yield Milestone(name, hashes[checkpoint], spent, sum(sampled[: number + 1]), scores[checkpoint])


def _place(record: RunRecord, checkpoint: str, policy_hash: str) -> tuple[int, int]:
    """Round and epoch that made ``checkpoint``; (-1, 0) is the base."""
    if checkpoint == BASE:
        return -1, 0
    place = next((place for place, made in record.trained_epochs.items() if made == policy_hash), None)
    if place is None:
        raise record.foreign_checkpoint(f"{checkpoint!r} ({policy_hash})")
    return place


def _steps_until(steps: Sequence[TrainingStep], number: int, epoch: int) -> int | None:
    """Count the steps of the run until the end of ``epoch`` of round ``number``; -1 is the base."""
    # the base is there before any step, also where metrics are missing
    if number < 0:
        return 0
    return max((s.number for s in steps if (s.round, s.epoch) <= (number, epoch)), default=None)


def _missing(
    record: RunRecord, sampled: Sequence[int], milestones: Sequence[Milestone], steps: Sequence[TrainingStep]
) -> Iterator[str]:
    rounds = record.run.config.rounds
    done = [sum(n == number for n, _ in record.trained_epochs) for number in range(len(rounds))]
    for number, settings in enumerate(rounds):
        if 0 < done[number] < settings.epochs:
            yield f"round {number}: {done[number]} of {settings.epochs} epochs are trained"
    untrained = [number for number, count in enumerate(done) if not count]
    if untrained:
        begun = f" ({sampled[untrained[0]]:,} rollouts so far)" if sampled[untrained[0]] else ""
        yield f"{len(untrained)} of {len(done)} rounds are not trained{begun}"
    if not milestones:
        yield "no checkpoint is measured on held-out problems yet"
    # milestones without a recorded evaluation come from its parts
    elif not record.entry(record.run.evaluation()):
        yield f"held-out problems are measured for {', '.join(one.name for one in milestones)} only"
    unknown = {
        "the share of correct answers (right_share)": sum(s.right_share is None for s in steps),
        "the policy's entropy (entropy)": sum(s.entropy is None for s in steps),
    }
    for name, count in unknown.items():
        if count:
            yield f"{count:,} of {len(steps):,} steps do not record {name}: an earlier version trained them"
