"""Rows that a run's trackers show: computed from the ledger, and steps of finished epochs from their own file.

Axes: `training` counts optimiser steps over all rounds, `rounds` counts rounds from 0. `heldout` counts rounds trained
(the base model has 0), `validation` epochs of the last round. `heldout_subset` and `validation_by_round` count rounds
trained: what was measured on some held-out problems, or on validation problems, during the run. Where every epoch is,
axes that end in `_by_epoch` count epochs trained. `costs` counts processes that have ended. Each is a folder in
logs/tensorboard.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from oapl_core.planning.measurements import measurements
from oapl_core.plugins import resolve
from oapl_core.run_folder.ledger import ArtifactEntry
from oapl_core.run_folder.run import METRICS_FILE, Run
from oapl_core.run_folder.run_record import RunRecord, metric_lines

TRAINING = "training"


@dataclass(frozen=True)
class Row:
    """Values at one place of an axis."""

    axis: str
    step: int
    values: Mapping[str, float]
    """Values by tag, as `sampling/rollouts`."""
    source: str
    """Hash of what the values come from: as long as it is the same, a tracker that has the row is told nothing."""


def hash_of(*parts: Any) -> str:
    """Short hash of what JSON makes of ``parts``."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:12]


def step_row(axis: str, earlier: int, metrics: Mapping[str, Any], source: str) -> Row:
    """Make an optimiser step's row, after ``earlier`` ones of earlier rounds; what is not known (None) is left out."""
    known = {key: value for key, value in metrics.items() if value is not None and key != "step"}
    return Row(axis, earlier + int(metrics["step"]), {f"{axis}/{k}": float(v) for k, v in known.items()}, source)


def steps_before(run: Run, number: int) -> int:
    """Optimiser steps of the rounds before round ``number``."""
    record = RunRecord(run)
    return sum(
        e.details.get("steps", 0) for k in range(number) for e in record.entries_in(run.checkpoints(k), "epoch_")
    )


def rows(run: Run) -> Iterator[Row]:
    """Everything that is known, axis by axis, steps ascending."""
    record, earlier = RunRecord(run), 0
    yield from _stage_rows(record)
    for number in range(len(run.config.rounds)):
        entries = record.entries_in(run.checkpoints(number), "epoch_")
        yield from (row for entry in entries for row in _steps(run, entry, TRAINING, earlier))
        earlier += sum(entry.details.get("steps", 0) for entry in entries)


def _stage_rows(record: RunRecord) -> Iterator[Row]:
    """Yield rows of what stages other than training did."""
    run = record.run
    for number in range(len(run.config.rounds)):
        if record.entry(run.groups(number)):  # a round's row is whole then, but for the mismatch
            yield _round(record, number)
    if ended := len(record.stages):
        yield Row("costs", ended, resolve("setting", "stop")(run).figures, str(ended))
    # of two at one place the later counts: it has all of the problems
    measured = {(one.axis, one.step): one.measures for one in measurements(run)}
    yield from (_evaluated(axis, step, one) for (axis, step), one in measured.items())


def _evaluated(axis: str, step: int, one: Mapping[str, Any]) -> Row:
    return Row(axis, step, {f"{axis}/{tag}": value for tag, value in _measured(one).items()}, hash_of(one))


def _steps(run: Run, entry: ArtifactEntry, axis: str, earlier: int) -> Iterator[Row]:
    path = run.root / entry.artifact / METRICS_FILE
    source = hash_of(entry.inputs, entry.config)
    if path.is_file():  # imported and hand-deleted checkpoints have none
        for line in metric_lines(path):
            yield step_row(axis, earlier, line, source)


def _round(record: RunRecord, number: int) -> Row:
    run = record.run
    sampled = record.entries_in(run.rollouts(number), "part-")
    judged = record.entries_in(run.verdicts(number), "part-")
    groups, mismatch = record.entry(run.groups(number)), record.entry(run.mismatch(number))
    values = {f"sampling/{tag}": value for tag, value in _sampling(sampled).items()}
    values |= {f"verification/{tag}": value for tag, value in _verification(judged).items()}
    if groups:
        values |= {
            f"groups/{tag}": value for tag, value in _groups(groups.details, record.correct_and_judged(number)).items()
        }
    if mismatch:
        values |= {f"mismatch/{tag}": float(mismatch.details[tag]) for tag in ("mean", "max", "k3")}
    for stage, verb in (("sampling", "rollouts.generate"), ("verification", "verdicts.verify")):
        # with what ran during sampling: `verdicts.verify round 0 follow`
        mine = [e.seconds for e in record.stages if f"{e.stage} ".startswith(f"{verb} round {number} ")]
        values |= {f"{stage}/seconds": sum(mine)} if mine else {}
    made = [*sampled, *judged, *filter(None, (groups, mismatch))]
    return Row("rounds", number, values, hash_of(sorted(entry.sha256 for entry in made)))


def _sampling(parts: list[ArtifactEntry]) -> dict[str, float]:
    rollouts = sum(part.rows for part in parts)
    # imported parts may not say everything
    known = {key: sum(part.details.get(key, 0) for part in parts) for key in ("problems", "truncated")}
    tokens = sum(part.details.get("response_tokens", 0) for part in parts)
    if not rollouts:
        return {}
    shares = {"truncated_share": known["truncated"] / rollouts, "mean_tokens": tokens / rollouts}
    return {"rollouts": rollouts, "problems": known["problems"], **shares}


def _verification(parts: list[ArtifactEntry]) -> dict[str, float]:
    outcomes = sum((Counter(part.details.get("outcomes", {})) for part in parts), Counter[str]())
    total = outcomes.total()
    return {"judged": total, **{f"share_{outcome}": n / total for outcome, n in outcomes.items()}} if total else {}


def _groups(details: Mapping[str, Any], counted: tuple[int, int] | None) -> dict[str, float]:
    if counted is None:
        return {}
    values = {"kept_rollouts": details["kept_rollouts"], "kept_groups": details["kept_groups"]}
    values |= {"correct_share": counted[0] / counted[1]} if counted[1] else {}
    return values | {f"dropped_{reason}": n for reason, n in details["dropped"].items()}


def _measured(one: Mapping[str, Any]) -> dict[str, float]:
    rates = {f"pass_at_{k}": interval[0] for k, interval in one["pass_at_k"].items()}
    lengths = {"mean_tokens": one["tokens"]["mean"], "truncated_share": one["truncated"] / one["answers"]}
    return rates | {"mean_reward": one["mean_reward"]} | lengths | {"verifier_errors": one["verifier_errors"]}
