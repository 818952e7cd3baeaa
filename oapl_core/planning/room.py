"""Room on the disk that the rest of a stage takes, estimated from what the run has written so far.

Earlier parts and rounds of the run say how large the rest will be. Before anything was measured, only the most that the
settings allow is known. Reads the ledger and the prompts' splits; writes nothing. Rows of the table of stages name
these functions, which are found by name: the kind `room` of oapl_core/plugins.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from oapl_core.errors import StageFailed
from oapl_core.files import readable_size
from oapl_core.planning.stage_row import earlier_choices
from oapl_core.progress import say
from oapl_core.run_folder.ledger import ArtifactEntry
from oapl_core.run_folder.run import GROUPS_FILE, ROLLOUTS_DIR, VERDICTS_DIR, Run
from oapl_core.settings.evaluation import EvaluationConfig
from oapl_core.tables import PROMPTS, read_table

ROLLOUT_BYTES_PER_TOKEN = 6.25
"""Ids, log-probs, text and all columns (docs/benchmarks/store.md)."""
EVALUATION_BYTES_PER_TOKEN = 1.5
"""Text and all columns, without ids and log-probs: the table of all answers of an evaluation."""
ANSWER_BYTES_PER_TOKEN = 1.5 * ROLLOUT_BYTES_PER_TOKEN
"""An evaluation's rollouts and the verdicts on them."""
_SHARE_OF_ROLLOUTS = {VERDICTS_DIR: 0.5, GROUPS_FILE: 1.0}
"""Size of what is made from rollouts before the run has shown it; the demo's are 0.43 and 0.5."""


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


def rollouts(run: Run, number: int) -> Need:
    """Estimate the rollouts of round ``number`` that are not there yet."""
    artifacts = run.ledger.artifacts()
    there = sum(entry.rows for entry in _entries(run, artifacts, number, f"{ROLLOUTS_DIR}/"))
    problems = problems_of(run, "train")
    asked = min(problems, run.config.rounds[number].problems or problems)
    sampling = run.config.of_round(number).sampling
    missing = max(0, asked * sampling.group_size - there)
    known = _measured(run, artifacts, number)
    if known:
        size = missing * known.tokens_per_rollout * known.bytes_per_token
        return Need(f"round {number}: {missing:,} rollouts need", size, is_measured=True)
    size = missing * sampling.max_tokens * ROLLOUT_BYTES_PER_TOKEN
    return Need(f"round {number}: {missing:,} rollouts of at most max_tokens need", size, is_measured=False)


def verdicts(run: Run, number: int) -> Need:
    """Estimate the verdicts on the rollouts that round ``number`` has."""
    return _from_rollouts(run, number, VERDICTS_DIR, "verdicts need")


def groups(run: Run, number: int) -> Need:
    """Estimate the groups file of round ``number``."""
    return _from_rollouts(run, number, GROUPS_FILE, "groups need")


def _from_rollouts(run: Run, number: int, kind: str, what: str) -> Need:
    """Estimate verdicts or groups: as large, compared with the rollouts, as they were in earlier rounds."""

    def size(entries: Sequence[ArtifactEntry]) -> int:
        return sum(entry.bytes for entry in entries)

    artifacts = run.ledger.artifacts()
    sampled, made = _entries(run, artifacts, number, f"{ROLLOUTS_DIR}/"), _entries(run, artifacts, number, kind)
    share = _SHARE_OF_ROLLOUTS[kind]
    for earlier in range(number - 1, -1, -1):
        before = _entries(run, artifacts, earlier, kind)
        if before:
            share = size(before) / max(1, size(_entries(run, artifacts, earlier, f"{ROLLOUTS_DIR}/")))
            break
    return Need(f"round {number}: {what}", max(0.0, share * size(sampled) - size(made)), is_measured=True)


def evaluation(run: Run, _number: int) -> Need:
    """Estimate the evaluation at the end of the run: answers that no evaluation has yet, and the table of all."""
    settings, rounds = run.config.evaluation, run.config.rounds
    validation = problems_of(run, "validation") * rounds[-1].epochs * settings.validation_samples
    heldout = problems_of(run, "heldout") * heldout_answers(settings)
    rows = validation + heldout * (run.config.earlier_checkpoints + 1)
    *before, last = run.config.evaluated_rounds
    again = ((number, f"/{name}_heldout") for number in before for name in ("base", f"round_{number}"))
    there = answered(run, last) + sum(answered(run, *one) for one in again)
    need = answers(run, last, f"evaluation: {rows:,} answers need", rows - there)
    # answers that are there, but not in the table of all
    rows += len(earlier_choices(run)) * problems_of(run, "validation") * settings.validation_samples
    return replace(need, bytes=max(0.0, need.bytes + rows * _longest(run, last)[0] * EVALUATION_BYTES_PER_TOKEN))


def heldout_answers(settings: EvaluationConfig) -> int:
    """Count the answers to a held-out problem, in each way of `evaluation.also` together."""
    return settings.heldout_samples + sum(settings.heldout_samples if one.temperature else 1 for one in settings.also)


def answers(run: Run, newest: int, what: str, rows: int) -> Need:
    """Estimate so many answers to an evaluation and the verdicts on them; a negative number takes from other bytes."""
    tokens, is_measured = _longest(run, newest)
    return Need(what, tokens * rows * ANSWER_BYTES_PER_TOKEN, is_measured)


def _longest(run: Run, newest: int) -> tuple[float, bool]:
    """Return tokens of an evaluation's answer, and whether rollouts until round ``newest`` have shown them."""
    known, most = _measured(run, run.ledger.artifacts(), newest), run.config.evaluation.max_tokens
    return (min(known.tokens_per_rollout, most), True) if known else (most, False)


def answered(run: Run, number: int, kind: str = "") -> int:
    """Count the recorded answers of the evaluation after round ``number``, perhaps of a ``kind`` of folders alone."""
    beginning, made = f"{run.name(run.evaluations(number))}/", run.ledger.artifacts()
    parts = [name for name in made if name.startswith(beginning) and f"/{ROLLOUTS_DIR}/" in name]
    return sum(made[name].rows for name in parts if kind in name)


def problems_of(run: Run, split: str) -> int:
    """Count the problems of a split; 0 before they are prepared."""
    if run.name(run.prompts) not in run.ledger.artifacts() or not run.prompts.is_file():
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
