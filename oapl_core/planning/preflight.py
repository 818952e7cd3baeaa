"""Before a stage starts: is what it reads still there, and is there room on the disk for what it writes?

Reads the ledger, the prompts' splits and the disk's free space; writes nothing. Earlier parts and rounds of the run say
how large the rest will be. Before anything was measured, only the most that the settings allow is known; too little
room for that is said but stops nothing. Training estimates for itself (training/saving/disk.py).
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oapl_core import plugins
from oapl_core.errors import ConfigError, DataError, StageFailed
from oapl_core.files import readable_size
from oapl_core.planning.plan import steps
from oapl_core.planning.stages import BY_VERB, EVALUATION, GROUPS, INTERIM, SAMPLING, VERIFICATION
from oapl_core.progress import say
from oapl_core.run_folder.ledger import ArtifactEntry
from oapl_core.run_folder.run import GROUPS_FILE, ROLLOUTS_DIR, VERDICTS_DIR, Run
from oapl_core.settings.experiment import Experiment
from oapl_core.tables import PROBLEMS, PROMPTS, read_table, readable
from oapl_core.toolchain_of import ASKED_BY, toolchains_of

if TYPE_CHECKING:
    from oapl_core.toolchain import Toolchain

ROLLOUT_BYTES_PER_TOKEN = 6.25
"""Ids, log-probs, text and all columns (docs/benchmarks/store.md)."""
EVALUATION_BYTES_PER_TOKEN = 1.5
"""Text and all columns, without ids and log-probs: the table of all answers of an evaluation."""
ANSWER_BYTES_PER_TOKEN = 1.5 * ROLLOUT_BYTES_PER_TOKEN
"""An evaluation's rollouts and the verdicts on them."""
_JUDGING = (VERIFICATION.verb, INTERIM.verb, EVALUATION.verb)
_SHARE_OF_ROLLOUTS = {VERDICTS_DIR: 0.5, GROUPS_FILE: 1.0}
"""Size of what is made from rollouts before the run has shown it; the demo's are 0.43 and 0.5."""


def before_stage(run: Run, verb: str, number: int | None) -> None:
    """Check what every stage process needs first; ``number`` is its round.

    Raises:
        ConfigError: the function that says what a verdict earns cannot be imported.
        DataError: what the stage reads was removed on purpose; says how to make it again.
        SandboxError: answers are to be judged whose language has no compiler or interpreter here.
        StageFailed: the disk has less room than the stage needs.
    """
    refuse_removed(run, verb, number)
    if verb in _JUDGING:
        refuse_missing_tools(run)
    # a minute before the first verdict, not after the first part
    # evaluations judge by the run's own settings, also those after a round
    has_own = verb == VERIFICATION.verb and number is not None and number < len(run.config.rounds)
    reward = (run.config.of_round(number or 0) if has_own else run.config).reward
    if reward and reward.place and verb in _JUDGING:
        plugins.resolve("setting", "reward.function")(reward.place, "reward.function")
    need = estimate(run, verb, number)
    if need:
        need.compare(run, shutil.disk_usage(run.root).free)


def refuse_removed(run: Run, verb: str, number: int | None) -> None:
    """Refuse a stage whose input was removed, as ``before_stage`` does."""
    removed = run.ledger.removals()
    lacking = [name for name in removed if name.startswith(_reads(run, verb, number))]
    if lacking:
        maker = next(step for step in steps(run.config) if lacking[0].startswith(step.outputs))
        again = f"--redo {maker.word}" + ("" if maker.round is None else f" --round {maker.round}")
        raise DataError(
            f"{run.root}: {verb} reads {lacking[0]}, which was removed ({removed[lacking[0]].rule}); "
            f"`oapl run {run.root} {again}` makes it again"
        )


def refuse_missing_tools(run: Run) -> None:
    """Ask the tools of every toolchain of the run's problems for their version.

    Raises:
        SandboxError: one is missing or broken; says what to install.
    """
    for toolchain in toolchains_in(run.problems):
        toolchain.found_version()


def refuse_unjudged(config: Experiment, problems: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Pass the problems on, each in its turn.

    Raises:
        ConfigError: one is open, has no gold and no tests, and nothing says what an answer to it earns.
    """
    reward = config.reward
    by_reward = set(reward.weights) - {"verdict", "tests", "f1"} if reward else set[str]()
    is_judged = config.environment is not None or bool(by_reward)
    for problem in problems:
        if problem["kind"] == "open" and not is_judged:
            raise ConfigError(
                f"problem {problem['problem_id']!r} has no gold and no tests: give [reward] a function or a judge, or "
                'name the column that has the gold, for example problems.columns = {answer = "final"}'
            )
        yield problem
        del problem  # before the next one is made: each may have 189 MB of tests


def toolchains_in(problems: Path) -> list[Toolchain]:
    """Return the toolchains that ``problems`` (tables.PROBLEMS) ask for, beside Python, by name."""
    if not problems.is_file():
        return []
    with readable(problems):
        asked = read_table(problems, PROBLEMS, [ASKED_BY])[ASKED_BY].unique().to_pylist()
    return toolchains_of({ASKED_BY: name} for name in asked)


def _reads(run: Run, verb: str, number: int | None) -> tuple[str, ...]:
    """Return beginnings of the names of artifacts that a stage cannot do without and that rules may remove."""
    last = len(run.config.rounds) - 1
    number = last if verb == EVALUATION.verb else number
    stage = BY_VERB.get(verb)
    if stage is None or number is None or not 0 <= number <= last:
        return ()
    return tuple(map(run.name, stage.reads(run, number)))


@dataclass(frozen=True)
class Need:
    """Room that the rest of a stage takes."""

    what: str
    bytes: float
    is_measured: bool
    """Whether it follows from what the run has written so far, or is the most that the settings allow."""

    def compare(self, run: Run, free_bytes: int) -> None:
        """Say or raise that there is too little.

        Raises:
            StageFailed: as ``before_stage``.
        """
        if free_bytes >= self.bytes:
            return
        room = f"{self.what} about {readable_size(self.bytes)} on the disk, {readable_size(free_bytes)} are free"
        remedy = "free some (`oapl du`, `oapl clean`), or choose another disk with runs_dir=..."
        if self.is_measured:
            raise StageFailed(f"{run.root}: {room}; {remedy}")
        say(f"{room}; the stage starts all the same, since that is the most it can come to; else {remedy}")


def estimate(run: Run, verb: str, number: int | None) -> Need | None:
    """Estimate what the rest of a stage writes; None where that is little, or the stage says so itself."""
    artifacts = run.ledger.artifacts()
    if verb == EVALUATION.verb:
        return _evaluation(run, artifacts)
    if verb == INTERIM.verb and number in run.config.interim_rounds:
        return _interim(run, number, artifacts)
    if number is None or not 0 <= number < len(run.config.rounds):
        return None
    if verb == SAMPLING.verb:
        return _rollouts(run, number, artifacts)
    if verb == VERIFICATION.verb:
        return _from_rollouts(run, number, artifacts, VERDICTS_DIR, "verdicts need")
    if verb == GROUPS.verb:
        return _from_rollouts(run, number, artifacts, GROUPS_FILE, "groups need")
    return None


def _problems(run: Run, artifacts: Mapping[str, ArtifactEntry], split: str) -> int:
    if run.name(run.prompts) not in artifacts or not run.prompts.is_file():
        return 0
    splits: list[str] = read_table(run.prompts, PROMPTS, ["split"])["split"].to_pylist()
    return splits.count(split)


def _entries(run: Run, artifacts: Mapping[str, ArtifactEntry], number: int, kind: str) -> list[ArtifactEntry]:
    beginning = f"{run.name(run.round_dir(number))}/{kind}"
    return [entry for name, entry in artifacts.items() if name.startswith(beginning)]


@dataclass(frozen=True)
class _Measured:
    """Sizes of this run's rollouts: those of the newest round up to one that has any."""

    tokens_per_rollout: float
    bytes_per_token: float


def _measured(run: Run, artifacts: Mapping[str, ArtifactEntry], newest: int) -> _Measured | None:
    for number in range(newest, -1, -1):
        parts = _entries(run, artifacts, number, f"{ROLLOUTS_DIR}/")
        tokens = sum(int(part.details.get("response_tokens") or 0) for part in parts)
        if tokens:
            return _Measured(tokens / sum(part.rows for part in parts), sum(part.bytes for part in parts) / tokens)
    return None


def _rollouts(run: Run, number: int, artifacts: Mapping[str, ArtifactEntry]) -> Need:
    there = sum(entry.rows for entry in _entries(run, artifacts, number, f"{ROLLOUTS_DIR}/"))
    problems = _problems(run, artifacts, "train")
    asked = min(problems, run.config.rounds[number].problems or problems)
    sampling = run.config.of_round(number).sampling
    missing = max(0, asked * sampling.group_size - there)
    known = _measured(run, artifacts, number)
    if known:
        size = missing * known.tokens_per_rollout * known.bytes_per_token
        return Need(f"round {number}: {missing:,} rollouts need", size, is_measured=True)
    size = missing * sampling.max_tokens * ROLLOUT_BYTES_PER_TOKEN
    return Need(f"round {number}: {missing:,} rollouts of at most max_tokens need", size, is_measured=False)


def _from_rollouts(run: Run, number: int, artifacts: Mapping[str, ArtifactEntry], kind: str, what: str) -> Need:
    """Estimate verdicts or groups: as large, compared with the rollouts, as they were in earlier rounds."""

    def size(entries: Sequence[ArtifactEntry]) -> int:
        return sum(entry.bytes for entry in entries)

    rollouts, made = _entries(run, artifacts, number, f"{ROLLOUTS_DIR}/"), _entries(run, artifacts, number, kind)
    share = _SHARE_OF_ROLLOUTS[kind]
    for earlier in range(number - 1, -1, -1):
        before = _entries(run, artifacts, earlier, kind)
        if before:
            share = size(before) / max(1, size(_entries(run, artifacts, earlier, f"{ROLLOUTS_DIR}/")))
            break
    return Need(f"round {number}: {what}", max(0.0, share * size(rollouts) - size(made)), is_measured=True)


def _interim(run: Run, number: int, artifacts: Mapping[str, ArtifactEntry]) -> Need:
    settings = run.config.evaluation
    asked = _problems(run, artifacts, "heldout")
    heldout = min(asked, settings.heldout_problems or asked) * settings.heldout_samples
    checkpoints = 2 if number == run.config.interim_rounds[0] else 1  # the base model, too
    rows = heldout * checkpoints + _problems(run, artifacts, "validation") * settings.validation_samples
    there = _answered(artifacts, f"{run.name(run.evaluations(number))}/")
    known = _measured(run, artifacts, number)
    tokens = min(known.tokens_per_rollout, settings.max_tokens) if known else settings.max_tokens
    size = max(0.0, tokens * (rows - there) * ANSWER_BYTES_PER_TOKEN)
    return Need(f"round {number}: {rows:,} answers of the evaluation need", size, is_measured=known is not None)


def _answered(artifacts: Mapping[str, ArtifactEntry], beginning: str, kind: str = "") -> int:
    """Count the recorded answers of evaluations below ``beginning``."""
    below = f"{kind}/{ROLLOUTS_DIR}/"
    return sum(entry.rows for name, entry in artifacts.items() if name.startswith(beginning) and below in name)


def _evaluation(run: Run, artifacts: Mapping[str, ArtifactEntry]) -> Need:
    settings, rounds = run.config.evaluation, run.config.rounds
    validation = _problems(run, artifacts, "validation") * rounds[-1].epochs * settings.validation_samples
    heldout = _problems(run, artifacts, "heldout") * settings.heldout_samples
    rows = validation + heldout * (run.config.earlier_checkpoints + 1)
    there = _answered(artifacts, f"{run.name(run.evaluations())}/")
    for number in run.config.interim_rounds:
        there += _answered(artifacts, f"{run.name(run.evaluations(number))}/", "_heldout")
    known = _measured(run, artifacts, len(rounds) - 1)
    tokens = min(known.tokens_per_rollout, settings.max_tokens) if known else settings.max_tokens
    size = tokens * ((rows - there) * ANSWER_BYTES_PER_TOKEN + rows * EVALUATION_BYTES_PER_TOKEN)
    return Need(f"evaluation: {rows:,} answers need", max(0.0, size), is_measured=known is not None)
