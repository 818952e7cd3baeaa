"""Judges the rollouts of a round again and says what is different: 1_rollouts/part-* against 2_verdicts/part-*.

For the day on which the rules, the limits or the sandbox have changed. Writes new verdict parts only when asked to, as
the verb `verify` would; groups and checkpoints made from the old ones then count as out of date.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from oapl_core.errors import DataError
from oapl_core.progress import Progress
from oapl_core.run_folder.run import ROLLOUTS_DIR, Run, parts_of
from oapl_core.tables import VERDICTS, count_rows, read_table
from oapl_core.verdicts.verifier import CHANGES, VERIFIER_VERSION, Verifier
from oapl_core.verdicts.verify import judge_part, record


@dataclass(frozen=True)
class Change:
    """One rollout whose outcome is another now."""

    rollout_id: str
    old: str
    new: str
    excerpt: str | None
    """What the new verdict shows of the failing test."""


@dataclass
class Regrading:
    """Both sides of a round, counted by outcome."""

    old: Counter[str] = field(default_factory=Counter)
    new: Counter[str] = field(default_factory=Counter)
    changes: list[Change] = field(default_factory=list)
    without_old: int = 0
    """Rollouts that had no verdict."""
    versions: Counter[str] = field(default_factory=Counter)
    """Verifier versions of the stored verdicts."""

    def why(self) -> list[str]:
        """What the verifier has judged differently since the oldest of the stored verdicts, a line for each version."""
        oldest = min((int(version) for version in self.versions), default=int(VERIFIER_VERSION))
        return [f"version {version}: {text}" for version, text in CHANGES.items() if int(version) > oldest]

    def compare(self, stored: list[dict[str, Any]], judged: list[dict[str, Any]]) -> None:
        """Take in the old and the new verdicts of one part; `new` has counted the latter."""
        old = {row["rollout_id"]: row["outcome"] for row in stored}
        self.old.update(old.values())
        self.versions.update(row["verifier_version"] for row in stored)
        for row in judged:
            name, new = row["rollout_id"], str(row["outcome"])
            if name not in old:
                self.without_old += 1
            elif old[name] != new:
                self.changes.append(Change(name, old[name], new, row["excerpt"]))


def round_of(rollouts: Path) -> tuple[Run, int]:
    """The run and the round number of a folder `RUN/round_NN/1_rollouts`.

    Raises:
        DataError: it is not such a folder.
    """
    folder = rollouts.resolve()
    number = folder.parent.name.removeprefix("round_")
    if folder.name != ROLLOUTS_DIR or not folder.is_dir() or not number.isdigit():
        raise DataError(f"{rollouts}: is not a folder of rollouts; give RUN/round_NN/1_rollouts")
    return Run.open(folder.parent.parent), int(number)


def regrade(run: Run, number: int, write: bool = False, tell: Callable[[str], None] | None = None) -> Regrading:
    """Judge every rollout of round `number` again; with `write`, replace the verdicts. `tell` gets progress lines.

    Raises:
        DataError: there are no rollouts, or one answers an unknown problem.
        SandboxError: no sandbox level works here.
        StageFailed: a canary was misjudged, or too many judgements failed for the verifier's own reasons.
    """
    parts = parts_of(run.rollouts(number))
    if not parts:
        raise DataError(f"{run.rollouts(number)}: has no rollouts to judge")
    regrading, total = Regrading(), sum(count_rows(part) for part in parts)
    with ExitStack() as stack:
        progress = stack.enter_context(Progress(f"judge round {number} again", total, "rollouts", tell=tell))
        verifier = stack.enter_context(Verifier(run.config.verifier))
        for part in parts:
            judged = judge_part(run, verifier, part, progress, regrading.new)
            regrading.compare(_stored(run.verdicts(number) / part.name), judged)  # before they are replaced
            if write:
                record(run, number, part, judged)
    return regrading


def _stored(target: Path) -> list[dict[str, Any]]:
    """The rows of an old part; none if there is no such part."""
    if not target.exists():
        return []
    columns = ["rollout_id", "outcome", "verifier_version"]
    stored: list[dict[str, Any]] = read_table(target, VERDICTS, columns).to_pylist()
    return stored
