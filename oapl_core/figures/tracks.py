"""A run as figures see it: its measured checkpoints with what they cost, and its optimiser steps one after the other.

Reads run.json, the ledger, training_metrics.jsonl of each epoch, and the held-out rows of the evaluation (its finished
parts while it goes on), without their texts. Rollouts are counted from the ledger: a run whose rollouts were removed
gives the same numbers. What is not there yet is said in ``Track.missing``.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from oapl_core import tables
from oapl_core.errors import DataError
from oapl_core.reports.facts import METRICS_FILE, ONE_SET, metric_lines, sources_of
from oapl_core.reports.scores import Resampling, Score, score
from oapl_core.run_folder.run import Run
from oapl_core.settings.experiment import Experiment

if TYPE_CHECKING:
    import polars as pl

BASE = "base"
METRICS = ("right_share", "entropy", "token_entropy", "token_log_ratio", "response_tokens")
"""Of a training step (docs/objectives.md); each may be missing in what an earlier version wrote."""
_OLD_ENTROPY = "policy_entropy"
"""What earlier versions wrote: mean of -(policy / behavior) ln policy of the sampled tokens, noisy and off-policy."""
_COLUMNS = ("checkpoint", "policy_hash", "split", "problem_id", "reward", "finish_reason")


@dataclass(frozen=True)
class Milestone:
    """A checkpoint that answered held-out problems."""

    name: str
    """``base``, ``round 0``, ``round 1``: the same word in every run, whichever epoch was chosen; what the evaluation
    says in brackets of an epoch that was chosen by what is reported stays."""
    policy_hash: str
    steps: int | None
    """Optimiser steps of the run until it was made; None where their metrics are missing."""
    rollouts: int
    """Sampled to train it, all rounds so far, also those that were dropped."""
    scores: Mapping[str, Score]
    """Problem set -> what it solved there."""


@dataclass(frozen=True)
class TrainingStep:
    """One optimiser step; what its line does not say is None."""

    number: int
    """Of the run, from 1; rounds follow each other."""
    round: int
    epoch: int
    right_share: float | None
    """Of its rollouts, which an earlier policy sampled."""
    entropy: float | None
    """The policy's, exact, mean over the tokens of its rollouts, nats."""
    estimated_entropy: float | None
    """An estimate of the same, where an earlier version wrote no other."""
    sampling_entropy: float | None
    """Mean of -ln behavior of the same tokens, nats."""
    response_tokens: int


@dataclass(frozen=True)
class Track:
    """One run."""

    label: str
    """What it is called in figures; runs with the same label are seeds of one setting."""
    run: str
    """Name of its folder."""
    config: Experiment
    milestones: Sequence[Milestone]
    """In the order in which they were made."""
    steps: Sequence[TrainingStep]
    rollouts: int
    """Sampled so far."""
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
    """What there is of ``run`` so far.

    Raises:
        DataError: a file exists but is broken, or an evaluated checkpoint is none of this run.
    """
    epochs = _epochs(run)
    sampled = _rollouts_by_round(run)
    steps = tuple(_steps(run, epochs))
    rows = _heldout_rows(run)
    milestones = [] if rows is None else _milestones(run, rows, epochs, sampled, steps)
    missing = tuple(f"{run.root.name}: {text}" for text in _missing(run, epochs, sampled, milestones, steps))
    return Track(label, run.root.name, run.config, tuple(milestones), steps, sum(sampled), missing)


def _epochs(run: Run) -> dict[tuple[int, int], str]:
    """(round, epoch) of every finished epoch -> policy hash."""
    artifacts, found = run.ledger.artifacts(), {}
    for number, settings in enumerate(run.config.rounds):
        for epoch in range(1, settings.epochs + 1):
            entry = artifacts.get(run.name(run.checkpoint(number, epoch)))
            if entry is not None:
                found[number, epoch] = str(entry.details.get("policy_hash"))
    return found


def _rollouts_by_round(run: Run) -> list[int]:
    artifacts = run.ledger.artifacts()
    folders = [f"{run.name(run.rollouts(number))}/" for number in range(len(run.config.rounds))]
    return [sum(e.rows for name, e in artifacts.items() if name.startswith(folder)) for folder in folders]


def _steps(run: Run, epochs: Mapping[tuple[int, int], str]) -> Iterator[TrainingStep]:
    before = 0
    for number, epoch in epochs:
        for line in metric_lines(run.checkpoint(number, epoch) / METRICS_FILE):
            before += 1
            right_share, entropy, cross_entropy, log_ratio, tokens = (line.get(name) for name in METRICS)
            of_behavior = None if cross_entropy is None or log_ratio is None else cross_entropy + log_ratio
            estimate = line.get(_OLD_ENTROPY)
            yield TrainingStep(before, number, epoch, right_share, entropy, estimate, of_behavior, int(tokens or 0))


def _heldout_rows(run: Run) -> "pl.DataFrame | None":
    """tables.EVALUATIONS of the held-out split with ``benchmark`` beside; no texts. None: nothing is measured yet.

    While the evaluation goes on, these are the checkpoints that have answered every problem.
    """
    import polars as pl

    artifacts, whole = run.ledger.artifacts(), run.evaluation()
    is_over = run.name(whole) in artifacts and whole.exists()
    files = [whole] if is_over else sorted(run.evaluations().glob("*.parquet"))
    read = [
        pl.from_arrow(tables.read_table(path, tables.EVALUATIONS, _COLUMNS, ("split", ("heldout",))))
        for path in files
        if run.name(path) in artifacts
    ]
    frames = [frame for frame in read if isinstance(frame, pl.DataFrame) and len(frame)]
    if not frames:
        return None
    rows = pl.concat(frames)
    if not is_over:
        asked = tables.read_table(run.prompts, tables.PROMPTS, ("problem_id", "split"), ("split", ("heldout",)))
        rows = rows.filter(pl.col("problem_id").n_unique().over("checkpoint") == len(asked))
    named = pl.col("problem_id").replace_strict(sources_of(run), default=ONE_SET, return_dtype=pl.String)
    return rows.with_columns(benchmark=named) if len(rows) else None


def _milestones(
    run: Run,
    rows: "pl.DataFrame",
    epochs: Mapping[tuple[int, int], str],
    sampled: Sequence[int],
    steps: Sequence[TrainingStep],
) -> list[Milestone]:
    resampling = Resampling(run.config.evaluation.bootstrap_resamples, run.config.seed)
    scores: dict[str, dict[str, Score]] = {}
    for (benchmark,), mine in rows.group_by("benchmark", maintain_order=True):
        for one in score(mine, resampling):
            scores.setdefault(one.checkpoint, {})[str(benchmark)] = one
    places = {checkpoint: _place(run, checkpoint, of_set, epochs) for checkpoint, of_set in scores.items()}
    entry = run.ledger.artifacts().get(run.name(run.evaluation()))
    chosen = str(entry.details.get("chosen")) if entry else ""
    if chosen in places:  # other epochs of its round answered held-out problems only to be compared with it
        scores = {c: s for c, s in scores.items() if c == chosen or places[c][0] != places[chosen][0]}
    rounds = [places[checkpoint][0] for checkpoint in scores]
    found = []
    for checkpoint in sorted(scores, key=lambda name: places[name]):
        number, epoch = places[checkpoint]
        warning = checkpoint[checkpoint.find(" (") :] if " (" in checkpoint else ""
        name = f"round {number}{warning}" if rounds.count(number) == 1 else checkpoint
        found.append(
            Milestone(
                BASE if number < 0 else name,
                next(iter(scores[checkpoint].values())).policy_hash,
                _steps_until(steps, number, epoch),
                sum(sampled[: number + 1]),
                scores[checkpoint],
            )
        )
    return found


def _place(
    run: Run, checkpoint: str, scores: Mapping[str, Score], epochs: Mapping[tuple[int, int], str]
) -> tuple[int, int]:
    """Round and epoch that made ``checkpoint``; (-1, 0) is the base."""
    if checkpoint == BASE:
        return -1, 0
    identity = next(iter(scores.values())).policy_hash
    for place, made in epochs.items():
        if made == identity:
            return place
    raise DataError(
        f"{run.evaluation()}: measured {checkpoint!r} ({identity}), which no round of this run made; delete the file "
        "to remake it"
    )


def _steps_until(steps: Sequence[TrainingStep], number: int, epoch: int) -> int | None:
    """Steps of the run until the end of ``epoch`` of round ``number``; -1 is the base."""
    if number < 0:
        return 0
    return max((s.number for s in steps if (s.round, s.epoch) <= (number, epoch)), default=None)


def _missing(
    run: Run,
    epochs: Mapping[tuple[int, int], str],
    sampled: Sequence[int],
    milestones: Sequence[Milestone],
    steps: Sequence[TrainingStep],
) -> Iterator[str]:
    done = [sum(n == number for n, _ in epochs) for number in range(len(run.config.rounds))]
    for number, settings in enumerate(run.config.rounds):
        if 0 < done[number] < settings.epochs:
            yield f"round {number}: {done[number]} of {settings.epochs} epochs are trained"
    untrained = [number for number, count in enumerate(done) if not count]
    if untrained:
        begun = f" ({sampled[untrained[0]]:,} rollouts so far)" if sampled[untrained[0]] else ""
        yield f"{len(untrained)} of {len(done)} rounds are not trained{begun}"
    if not milestones:
        yield "no checkpoint is measured on held-out problems yet"
    elif run.name(run.evaluation()) not in run.ledger.artifacts():
        yield f"held-out problems are measured for {', '.join(one.name for one in milestones)} only"
    lacking: dict[str, Any] = {
        "the share of right answers (right_share)": [s.right_share for s in steps],
        "the policy's entropy (entropy)": [s.entropy for s in steps],
    }
    for name, values in lacking.items():
        unknown = sum(value is None for value in values)
        if unknown:
            yield f"{unknown:,} of {len(values):,} steps do not record {name}: an earlier version trained them"
