"""Reads what a run has so far: the ledger and the Parquet files of its rounds and its evaluation.

What does not exist yet is listed in ``Facts.missing`` and left out; what exists but is broken is a DataError.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from oapl_core import tables
from oapl_core.errors import DataError
from oapl_core.reports import records
from oapl_core.reports.rounds.turn_counts import TurnCounts, turn_counts
from oapl_core.run_folder.ledger import ArtifactEntry, StageEntry
from oapl_core.run_folder.recorded import IMPORTED
from oapl_core.run_folder.run import METRICS_FILE, Run

if TYPE_CHECKING:
    from pathlib import Path

    import polars as pl

METRIC_COLUMNS = (
    *("step", "epoch", "loss", "log_ratio", "log_ratio_right", "log_ratio_wrong"),
    *("learning_rate", "grad_norm"),
)


@dataclass(frozen=True)
class RoundFacts:
    """One round; what it has not reached yet is None or empty."""

    number: int
    rollouts: int = 0
    problems: int = 0
    truncated: int = 0
    response_tokens: int | None = None
    policy_hash: str | None = None
    engines: Sequence[str] = ()
    turns: TurnCounts | None = None
    """Counts over the rollouts that an environment took part in."""
    outcomes: Mapping[str, int] = field(default_factory=dict)
    kept: int | None = None
    kept_groups: int | None = None
    dropped: Mapping[str, int] = field(default_factory=dict)
    trust: Mapping[str, Any] = field(default_factory=dict)
    """Counts that groups/trust.py made."""
    mismatch: Mapping[str, Any] = field(default_factory=dict)
    """Measurements that training/mismatch.py made."""
    epochs: Mapping[int, str] = field(default_factory=dict)
    """Finished epoch, counted from 1 -> policy hash of its checkpoint."""
    metrics: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """Column of METRIC_COLUMNS -> one number for each optimiser step; NaN where a step has none."""

    @property
    def label(self) -> str:
        """``round 0``: what the report calls it."""
        return f"round {self.number}"


@dataclass(frozen=True)
class Facts:
    """Everything the report is computed from."""

    run: Run
    artifacts: Mapping[str, ArtifactEntry]
    stages: Sequence[StageEntry]
    rounds: Sequence[RoundFacts]
    evaluation: "pl.DataFrame | None"
    evaluation_details: Mapping[str, Any]
    missing: Sequence[str]
    base: str | None = None
    """Policy hash of what round 0 starts training at; None where nothing says it yet."""

    @property
    def engines(self) -> list[str]:
        """Every engine, with its version, that sampled rollouts."""
        return sorted({engine for r in self.rounds for engine in r.engines})

    def rollouts_spent(self, policy_hash: str) -> int:
        """Count the rollouts sampled for training until the checkpoint with this hash was made; 0 for the base.

        Raises:
            DataError: no round of this run made it.
        """
        if policy_hash == self.base:
            return 0
        spent = 0
        for facts in self.rounds:
            # rounds in order: a checkpoint has cost all rounds up to the one that made it
            spent += facts.rollouts
            if policy_hash in facts.epochs.values():
                return spent
        raise records.foreign_checkpoint(self.run, f"checkpoint {policy_hash}")


def gather(run: Run, numbers: Sequence[int] | None = None) -> Facts:
    """Read the run folder, or only what concerns the rounds ``numbers``.

    Raises:
        DataError: a file exists but cannot be read, misses documented columns, or contradicts the ledger.
    """
    artifacts = run.ledger.artifacts()
    every = range(len(run.config.rounds))
    rounds = [_round(run, number, artifacts) for number in (every if numbers is None else numbers)]
    entry = artifacts.get(run.name(run.evaluation()))
    evaluation = records.frame([run.evaluation()], tables.EVALUATIONS) if entry and run.evaluation().exists() else None
    missing = [] if run.name(run.prompts) in artifacts else ["problems and prompts"]
    missing += [text for facts in rounds for text in _missing(run, facts)]
    if evaluation is None:
        missing.append("the evaluation: no pass rates, figures of pass@k, or sample answers")
    # details of a file that is gone would name checkpoints without scores
    details = entry.details if entry and evaluation is not None else {}
    base = _base(run, rounds, evaluation)
    return Facts(run, artifacts, run.ledger.stages(), rounds, evaluation, details, missing, base)


def _base(run: Run, rounds: Sequence[RoundFacts], evaluation: "pl.DataFrame | None") -> str | None:
    import polars as pl

    # the evaluation hashed the folder itself; rollouts name whoever sampled them, which after an import is another
    if evaluation is not None:
        hashes = evaluation.filter(pl.col("checkpoint") == records.BASE)["policy_hash"]
        if len(hashes):
            return str(hashes[0])
    imported = any(IMPORTED in entry.details for entry in records.entries_in(run, run.rollouts(0)))
    return None if imported else next((one.policy_hash for one in rounds if one.number == 0), None)


def _missing(run: Run, facts: RoundFacts) -> list[str]:
    settings = run.config.rounds[facts.number]
    epochs = settings.epochs
    unjudged = facts.rollouts - sum(facts.outcomes.values())
    absent = {
        "rollouts": not facts.rollouts and not settings.demonstrations,
        f"verdicts for {unjudged:,} rollouts": unjudged > 0,
        "groups": facts.kept is None,
        f"{epochs - len(facts.epochs)} of {epochs} epochs of training": len(facts.epochs) < epochs,
    }
    return [f"{facts.label}: {what}" for what, is_absent in absent.items() if is_absent]


def _round(run: Run, number: int, artifacts: Mapping[str, ArtifactEntry]) -> RoundFacts:
    sampled = _sampled(run, number, artifacts)
    if not sampled and not run.config.rounds[number].demonstrations:
        return RoundFacts(number)
    verdicts = records.recorded_parts(run, run.verdicts(number))
    outcomes = records.frame(verdicts, tables.VERDICTS, ("outcome",))["outcome"].to_list() if verdicts else []
    groups = artifacts.get(run.name(run.groups(number)))
    mismatch = artifacts.get(run.name(run.checkpoints(number) / "engine_mismatch.parquet"))
    # a folder that a person deleted by hand is trained again, so its epoch does not count
    epochs = {e: made for (n, e), made in records.trained_epochs(run).items() if n == number}
    epochs = {e: made for e, made in epochs.items() if run.checkpoint(number, e).is_dir()}
    return RoundFacts(
        number,
        **sampled,
        outcomes=dict(Counter(outcomes).most_common()),
        kept=records.detail(groups, "kept_rollouts") if groups else None,
        kept_groups=records.detail(groups, "kept_groups") if groups else None,
        dropped=records.detail(groups, "dropped") if groups else {},
        trust=groups.details.get("trust", {}) if groups else {},
        mismatch=mismatch.details if mismatch else {},
        epochs=epochs,
        metrics=read_metrics([run.checkpoint(number, epoch) / METRICS_FILE for epoch in epochs]),
    )


def _sampled(run: Run, number: int, artifacts: Mapping[str, ArtifactEntry]) -> dict[str, Any]:
    """Return RoundFacts' fields about a round's rollouts: from parts, or from the ledger once a rule removed those."""
    import polars as pl

    if records.rollouts_removed(run, number):
        return _remembered(records.entries_in(run, run.rollouts(number)))
    parts = records.recorded_parts(run, run.rollouts(number))
    if not parts:
        return {}
    rollouts = records.frame(parts, tables.ROLLOUTS, ("problem_id", "finish_reason", "policy_hash", "engine"))
    # token columns stay on the disk: the ledger has the sum of each part
    tokens = [artifacts[run.name(part)].details.get("response_tokens") for part in parts]
    return {
        "rollouts": len(rollouts),
        "problems": rollouts["problem_id"].n_unique(),
        "truncated": len(rollouts.filter(pl.col("finish_reason") == "length")),
        "response_tokens": sum(t for t in tokens if t is not None) if None not in tokens else None,
        "policy_hash": ", ".join(rollouts["policy_hash"].unique().sort()),
        "engines": rollouts["engine"].unique().sort().to_list(),
        "turns": turn_counts(parts),
    }


def _remembered(entries: Sequence[ArtifactEntry]) -> dict[str, Any]:
    """Return the fields of ``_sampled`` from the ledger's details."""
    names = ("problems", "truncated", "response_tokens", "policy_hash", "engine")
    of = {key: [records.detail(entry, key) for entry in entries] for key in names}
    sums = {key: sum(map(int, of[key])) for key in names[:3]}
    hashes, engines = (sorted(set(map(str, of[key]))) for key in names[3:])
    return {"rollouts": sum(e.rows for e in entries), "policy_hash": ", ".join(hashes), "engines": engines, **sums}


def read_metrics(files: "Sequence[Path]") -> dict[str, list[float]]:
    """Read one round's metrics per optimiser step from its epochs' files, in order; empty if there are no files.

    Raises:
        DataError: a file is missing or is not JSON lines, or a step is without one of METRIC_COLUMNS.
    """
    columns: dict[str, list[float]] = {name: [] for name in METRIC_COLUMNS} if files else {}
    for path in files:
        for number, step in enumerate(records.metric_lines(path), start=1):
            for name, values in columns.items():
                if name not in step:
                    raise DataError(
                        f"{path}: line {number} has no `{name}`; the training that wrote it is of another version"
                    )
                # a step without correct, or wrong, answers has no mean of them; figures leave a gap for NaN
                values.append(float("nan") if step[name] is None else float(step[name]))
    return columns
