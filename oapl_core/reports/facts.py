"""Reads what a run has so far: the ledger and the Parquet files of its rounds and its evaluation.

What does not exist yet is listed in ``Facts.missing`` and left out; what exists but is broken is a DataError.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oapl_core import tables
from oapl_core.errors import DataError
from oapl_core.run_folder.ledger import ArtifactEntry, StageEntry
from oapl_core.run_folder.run import Run

if TYPE_CHECKING:
    import polars as pl

METRICS_FILE = "training_metrics.jsonl"
ONE_SET = "held-out problems"
"""Name of the problem set in runs that do not say where each problem comes from."""
METRIC_COLUMNS = (
    "step",
    "epoch",
    "loss",
    "log_ratio",
    "log_ratio_right",
    "log_ratio_wrong",
    "learning_rate",
    "grad_norm",
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
    outcomes: Mapping[str, int] = field(default_factory=dict)
    kept: int | None = None
    kept_groups: int | None = None
    dropped: Mapping[str, int] = field(default_factory=dict)
    trust: Mapping[str, Any] = field(default_factory=dict)
    """What groups/trust.py counted."""
    mismatch: Mapping[str, Any] = field(default_factory=dict)
    """What training/mismatch.py measured."""
    epochs: Mapping[int, str] = field(default_factory=dict)
    """Finished epoch, counted from 1 -> policy hash of its checkpoint."""
    metrics: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """Column of METRIC_COLUMNS -> one number for each optimiser step; NaN where a step has none."""

    @property
    def label(self) -> str:
        """What a person calls it."""
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

    @property
    def engines(self) -> list[str]:
        """Every engine, with its version, that sampled rollouts."""
        return sorted({engine for r in self.rounds for engine in r.engines})

    def rollouts_spent(self, policy_hash: str) -> int:
        """Rollouts sampled for training until the checkpoint with this hash was made; 0 for the base.

        Raises:
            DataError: no round of this run made it.
        """
        if policy_hash == self.rounds[0].policy_hash:
            return 0
        spent = 0
        for facts in self.rounds:
            spent += facts.rollouts
            if policy_hash in facts.epochs.values():
                return spent
        where = self.run.evaluation()
        raise DataError(
            f"{where}: measured checkpoint {policy_hash}, which no round of this run made; delete the file to remake it"
        )


def gather(run: Run, numbers: Sequence[int] | None = None) -> Facts:
    """Read the run folder, or only what concerns the rounds ``numbers``.

    Raises:
        DataError: a file exists but cannot be read, lacks documented columns, or contradicts the ledger.
    """
    artifacts = run.ledger.artifacts()
    every = range(len(run.config.rounds))
    rounds = [_round(run, number, artifacts) for number in (every if numbers is None else numbers)]
    entry = artifacts.get(run.name(run.evaluation()))
    evaluation = _frame([run.evaluation()], tables.EVALUATIONS) if entry and run.evaluation().exists() else None
    missing = [] if run.name(run.prompts) in artifacts else ["problems and prompts"]
    missing += [text for facts in rounds for text in _missing(run, facts)]
    if evaluation is None:
        missing.append("the evaluation: no pass rates, figures of pass@k, or sample answers")
    details = entry.details if entry and evaluation is not None else {}
    return Facts(run, artifacts, run.ledger.stages(), rounds, evaluation, details, missing)


def _missing(run: Run, facts: RoundFacts) -> list[str]:
    epochs = run.config.rounds[facts.number].epochs
    found = []
    if not facts.rollouts:
        found.append(f"{facts.label}: rollouts")
    if sum(facts.outcomes.values()) < facts.rollouts:
        found.append(f"{facts.label}: verdicts for {facts.rollouts - sum(facts.outcomes.values()):,} rollouts")
    if facts.kept is None:
        found.append(f"{facts.label}: groups")
    if len(facts.epochs) < epochs:
        found.append(f"{facts.label}: {epochs - len(facts.epochs)} of {epochs} epochs of training")
    return found


def _round(run: Run, number: int, artifacts: Mapping[str, ArtifactEntry]) -> RoundFacts:
    sampled = _sampled(run, number, artifacts)
    if not sampled:
        return RoundFacts(number)
    verdicts = _recorded(run, run.verdicts(number), artifacts)
    outcomes = _frame(verdicts, tables.VERDICTS, ("outcome",))["outcome"].to_list() if verdicts else []
    groups = artifacts.get(run.name(run.groups(number)))
    mismatch = artifacts.get(run.name(run.checkpoints(number) / "engine_mismatch.parquet"))
    done = {e: run.checkpoint(number, e) for e in range(1, run.config.rounds[number].epochs + 1)}
    done = {e: path for e, path in done.items() if run.name(path) in artifacts and path.is_dir()}
    return RoundFacts(
        number,
        **sampled,
        outcomes=dict(Counter(outcomes).most_common()),
        kept=_detail(groups, "kept_rollouts") if groups else None,
        kept_groups=_detail(groups, "kept_groups") if groups else None,
        dropped=_detail(groups, "dropped") if groups else {},
        trust=groups.details.get("trust", {}) if groups else {},
        mismatch=mismatch.details if mismatch else {},
        epochs={e: str(_detail(artifacts[run.name(path)], "policy_hash")) for e, path in done.items()},
        metrics=read_metrics([path / METRICS_FILE for path in done.values()]),
    )


def _sampled(run: Run, number: int, artifacts: Mapping[str, ArtifactEntry]) -> dict[str, Any]:
    """What RoundFacts says of a round's rollouts: from the parts, or from the ledger once they were removed by rule."""
    import polars as pl

    if rollouts_removed(run, number):
        mine = f"{run.name(run.rollouts(number))}/"
        return _remembered([entry for name, entry in artifacts.items() if name.startswith(mine)])
    parts = _recorded(run, run.rollouts(number), artifacts)
    if not parts:
        return {}
    rollouts = _frame(parts, tables.ROLLOUTS, ("problem_id", "finish_reason", "policy_hash", "engine"))
    tokens = [artifacts[run.name(part)].details.get("response_tokens") for part in parts]
    return {
        "rollouts": len(rollouts),
        "problems": rollouts["problem_id"].n_unique(),
        "truncated": len(rollouts.filter(pl.col("finish_reason") == "length")),
        "response_tokens": sum(t for t in tokens if t is not None) if None not in tokens else None,
        "policy_hash": ", ".join(rollouts["policy_hash"].unique().sort()),
        "engines": rollouts["engine"].unique().sort().to_list(),
    }


def rollouts_removed(run: Run, number: int) -> bool:
    """Whether a person let rollouts of the round go; a round's are removed together."""
    return any(name.startswith(f"{run.name(run.rollouts(number))}/") for name in run.ledger.removals())


def _remembered(entries: Sequence[ArtifactEntry]) -> dict[str, Any]:
    """The same from the ledger's details."""
    sums = {key: sum(int(_detail(e, key)) for e in entries) for key in ("problems", "truncated", "response_tokens")}
    hashes = sorted({str(_detail(entry, "policy_hash")) for entry in entries})
    engines = sorted({str(_detail(entry, "engine")) for entry in entries})
    return {"rollouts": sum(e.rows for e in entries), "policy_hash": ", ".join(hashes), "engines": engines, **sums}


def _recorded(run: Run, folder: Path, artifacts: Mapping[str, ArtifactEntry]) -> list[Path]:
    """Parts that the ledger knows and that are still there."""
    return sorted(path for path in folder.glob("part-*.parquet") if run.name(path) in artifacts)


def _detail(entry: ArtifactEntry, key: str) -> Any:
    if key not in entry.details:
        raise DataError(
            f"{entry.artifact}: the ledger does not say `{key}`; it was made by another version, delete it to remake it"
        )
    return entry.details[key]


def _frame(
    paths: Sequence[Path], fields: Sequence[tuple[str, str]], columns: Sequence[str] | None = None
) -> "pl.DataFrame":
    import polars as pl

    frames = [pl.from_arrow(tables.read_table(path, fields, columns)) for path in paths]
    return pl.concat([frame for frame in frames if isinstance(frame, pl.DataFrame)])


def read_metrics(files: Sequence[Path]) -> dict[str, list[float]]:
    """One round's metrics per optimiser step from its epochs' files, in order; empty if there are no files.

    Raises:
        DataError: a file is missing or is not JSON lines, or a step lacks one of METRIC_COLUMNS.
    """
    columns: dict[str, list[float]] = {name: [] for name in METRIC_COLUMNS} if files else {}
    for path in files:
        for number, step in enumerate(metric_lines(path), start=1):
            absent = [name for name in METRIC_COLUMNS if name not in step]
            if absent:
                raise DataError(
                    f"{path}: line {number} has no `{absent[0]}`; the training that wrote it is of another version"
                )
            for name in METRIC_COLUMNS:
                columns[name].append(float("nan") if step[name] is None else float(step[name]))
    return columns


def metric_lines(path: Path) -> list[dict[str, Any]]:
    """What training wrote about each optimiser step of an epoch, in order.

    Raises:
        DataError: the file is missing or is not JSON lines.
    """
    remedy = "delete the checkpoint's folder and run the experiment again"
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines if line]
    except FileNotFoundError:
        raise DataError(f"{path}: is missing; {remedy}") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: is not JSON lines ({error}); {remedy}") from None


def sources_of(run: Run) -> dict[str, str]:
    """Held-out problem -> the set that it comes from, where problems.parquet says so."""
    import pyarrow.parquet as pq

    with tables.readable(run.problems):
        names = pq.read_schema(run.problems).names
    if "source" not in names:
        return {}
    columns = ("problem_id", "split", "source")
    rows = tables.read_table(run.problems, tables.PROBLEMS, columns, ("split", ("heldout",))).to_pylist()
    return {row["problem_id"]: row["source"] or ONE_SET for row in rows}
