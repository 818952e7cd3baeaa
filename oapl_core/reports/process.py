"""Course of the run: rollouts and their outcomes, dropped rows, epochs, time, settings, versions, checkpoints.

Turns a RunRecord into tables; nothing here knows Markdown or HTML.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from oapl_core.planning.plan import Step, times
from oapl_core.planning.warnings import batch_too_large, left_out_statements
from oapl_core.reports.blocks import DASH, Table, duration, percent, table, whole
from oapl_core.run_folder.ledger import ArtifactEntry
from oapl_core.run_folder.run_record import RoundRecord, RunRecord
from oapl_core.turns.counts import TurnCounts, turn_counts


def outcome_counts(rounds: Sequence[RoundRecord]) -> dict[str, dict[str, int]]:
    """Round -> outcome -> rollouts, of the rounds that are judged."""
    judged = [r for r in rounds if r.outcomes]
    outcomes = dict.fromkeys(o for r in judged for o in r.outcomes)
    return {r.label: {o.replace("_", " "): r.outcomes.get(o, 0) for o in outcomes} for r in judged}


def shares(first: str, counts: Mapping[str, Mapping[str, int]]) -> tuple[list[str], list[list[str]]]:
    """Make columns and rows of round -> kind -> how many: numbers, and their shares of the round's sum."""
    kinds = dict.fromkeys(kind for of_round in counts.values() for kind in of_round)
    totals = {name: sum(of_round.values()) for name, of_round in counts.items()}
    rows = [
        [kind, *(cell for name, total in totals.items() for cell in _count(counts[name][kind], total))]
        for kind in kinds
    ]
    rows.append(["all", *(cell for total in totals.values() for cell in (whole(total), ""))])
    return [first, *(column for name in counts for column in (f"{name}>", "share>"))], rows


def _count(number: int, total: int) -> tuple[str, str]:
    return whole(number), percent(number / total if total else None)


def prompts_note(record: RunRecord) -> str:
    """Say how many problems never reached the model."""
    entry = record.artifacts.get(record.run.name(record.run.prompts))
    dropped = sum(entry.details.get("dropped", {}).values()) if entry else 0
    total = (entry.rows if entry else 0) + dropped
    limit = record.run.config.problems.max_prompt_tokens
    return f"{dropped:,} of {total:,} problems were left out because their prompt is longer than {limit:,} tokens."


def warnings(record: RunRecord) -> list[str]:
    """List the warnings of the stages, as the ledger says them."""
    run, config = record.run, record.run.config
    problems = record.artifacts.get(run.name(run.problems))
    found = [left_out_statements(problems.details)] if problems else []
    for number in range(len(config.rounds)):
        entry = record.artifacts.get(run.name(run.checkpoint(number, 1)))
        if entry:
            found.append(batch_too_large(f"round {number}", entry.rows, config.training_of(number).batch_size))
    return [line for line in found if line]


def turns(record: RunRecord) -> list[tuple[str, TurnCounts]]:
    """Count how often the model spoke and called tools, in the rounds that have turns."""
    counted = [(one.label, turn_counts(record.parts(record.run.rollouts(one.number)))) for one in record.rounds]
    return [(name, counts) for name, counts in counted if counts]


def trust_table(rounds: Sequence[RoundRecord]) -> Table:
    """Can the rollouts be trusted: are all there, are they different, do engine and trainer agree about them?"""
    rounds = [r for r in rounds if r.trust]
    rows = [
        [name, *(show(r.trust, r.mismatch) if r.mismatch or not needs else DASH for r in rounds)]
        for name, needs, show in _TRUST
    ]
    note = (
        "Engine and trainer scored the same rollouts with the same weights; a difference is ln policy - ln behavior of "
        "a token, in nats; training stops where its mean is more than training.max_mismatch. Encoded again: rollouts "
        "whose decoded text gives other tokens; nothing is trained on encoded text. Repeats: equal to another rollout "
        "of the group, token for token."
    )
    return table("Trust checks", ("", *(f"{r.label}>" for r in rounds)), rows, note)


def _of(part: int, total: int) -> str:
    return f"{part:,} of {total:,}"


_TRUST: tuple[tuple[str, bool, Callable[[Mapping[str, Any], Mapping[str, Any]], str]], ...] = (
    ("missing samples", False, lambda t, _: _of(t["missing_samples"], t["expected_samples"])),
    ("cut at the length limit", False, lambda t, _: percent(t["truncated_share"])),
    ("repeats", False, lambda t, _: percent(t["duplicate_share"])),
    ("without recorded log-probs", False, lambda t, _: whole(t["without_logprobs"])),
    ("scored again, of those trained on", True, lambda _, m: f"{m['sequences']:,}, {percent(m['share'])}"),
    ("mean difference of a token", True, lambda _, m: f"{m['mean']:.2g}"),
    ("largest difference of a token", True, lambda _, m: f"{m['max']:.2g}"),
    ("k3 of a token", True, lambda _, m: f"{m['k3']:.2g}"),
    ("mean sum over a rollout", True, lambda _, m: f"{m['sequence_sum_mean']:.2g}"),
    ("largest sum over a rollout", True, lambda _, m: f"{m['sequence_sum_max']:.2g}"),
    ("other tokens if encoded again", True, lambda _, m: _of(m["drifted"], m["sequences"])),
)


def dropped_counts(rounds: Sequence[RoundRecord]) -> dict[str, dict[str, int]]:
    """Round -> "trained on" or reason -> rollouts, for the rounds whose groups are built.

    Every reason stands under every round, so that the same one has the same place and colour.
    """
    rounds = [r for r in rounds if r.kept is not None]
    reasons = list(dict.fromkeys(reason for r in rounds for reason in r.dropped))
    return {
        r.label: {"trained on": r.kept or 0, **{x.replace("_", " "): r.dropped.get(x, 0) for x in reasons}}
        for r in rounds
    }


def time_table(record: RunRecord) -> Table:
    """Wall time of each stage, every process of it counted, and the part of it spent on its artifacts."""
    measured = list(times(record.run))
    total = sum(time.added_s for time in measured)
    rows = []
    for time in measured:
        # a step with options shares its outputs with the plain step, whose row counts them
        mine = [] if time.step.options else _mine(record, time.step)
        share = percent(time.added_s / total if total else None, 0)
        own = (_start_up(mine), duration(sum(entry.seconds for entry in mine)), whole(len(mine)))
        rows.append((time.step.title, duration(time.seconds), share, *own, whole(time.processes)))
    rows.append(("all", duration(total), "", "", "", "", ""))
    note = (
        "Start-up: of engine or trainer, where recorded. Writing: writing and hashing files. What runs in parallel "
        "with another stage counts in share and sum only as far as it outlasts it. Without this report."
    )
    columns = ("stage", "wall time>", "share>", "start-up>", "writing>", "artifacts>", "processes>")
    return table("Where the time went", columns, rows, note)


def starts_table(record: RunRecord) -> Table:
    """Tabulate the seconds of each stage's engine starts by what they were spent on; no rows before one is recorded."""
    starts = [
        (time.step.title, _starts(_mine(record, time.step))) for time in times(record.run) if not time.step.options
    ]
    phases = list(dict.fromkeys(phase for _, own in starts for one in own for phase in one))
    rows = [
        (title, whole(len(own)), *(_mean_time([one[phase] for one in own if phase in one]) for phase in phases))
        for title, own in starts
        if own
    ]
    note = (
        "Mean of the stage's starts. Import: of vLLM. Cache: making room for keys and values, and what else vLLM's own "
        "lines leave of its start. Engine: what no line of vLLM accounts for."
    )
    return table("How engines started", ("stage", "starts>", *(f"{phase}>" for phase in phases)), rows, note)


def _starts(entries: Sequence[ArtifactEntry]) -> list[dict[str, float]]:
    """List each process's start-up times once; a process's artifacts repeat them, other numbers are other processes."""
    # dumps: a dict cannot be in a set
    found = {json.dumps(e.details["startup_s"], sort_keys=True): e for e in entries if "startup_s" in e.details}
    return [entry.details["startup_s"] for entry in found.values()]


def _mean_time(seconds: Sequence[float]) -> str:
    return duration(sum(seconds) / len(seconds)) if seconds else DASH


def _mine(record: RunRecord, step: Step) -> list[ArtifactEntry]:
    return [entry for name, entry in record.artifacts.items() if name.startswith(step.outputs)]


def _start_up(entries: Sequence[ArtifactEntry]) -> str:
    engines = _starts(entries)
    trainers = {float(e.details["start_up_s"]) for e in entries if "start_up_s" in e.details}
    if not engines and not trainers:
        return DASH
    return duration(sum(sum(engine.values()) for engine in engines) + sum(trainers))


def training_table(record: RunRecord) -> Table:
    """Tabulate each epoch's end: steps so far, and means over its last steps."""
    rows = []
    for r in record.rounds:
        epochs = r.metrics.get("epoch", [])
        for epoch in sorted(set(epochs)):
            steps = [i for i, e in enumerate(epochs) if e == epoch]
            means = (_mean(r.metrics[name], steps) for name in _MEANS.values())
            rows.append([r.label, whole(epoch), whole(len(steps)), *means])
    found = [e.details["computed_with"] for e in record.artifacts.values() if "computed_with" in e.details]
    ways = sorted({", ".join(f"training.{key}: {value}" for key, value in one.items()) for one in found})
    note = "Log-ratio: sum over an answer of ln policy - ln behavior, nats."
    note += f" Computed with {'; or with '.join(ways)}." if ways else ""
    return table("Means over the steps of each epoch", ("round", "epoch>", "steps>", *_MEANS), rows, note)


_MEANS = {
    "loss>": "loss",
    "log-ratio>": "log_ratio",
    "of correct answers>": "log_ratio_right",
    "of wrong answers>": "log_ratio_wrong",
    "gradient norm>": "grad_norm",
}


def _mean(values: Sequence[float], steps: Sequence[int]) -> str:
    known = [values[i] for i in steps if not math.isnan(values[i])]
    return f"{sum(known) / len(known):.4g}" if known else DASH
