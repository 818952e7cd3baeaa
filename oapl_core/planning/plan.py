"""What a run consists of: its steps in order, which are finished, and where the time went.

A step is one process of one stage. Flows execute this list, `oapl status` and `--dry-run` print it, so they cannot
disagree. Reads only the ledger and the names of files.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from oapl_core.files import sha256_once
from oapl_core.planning.stages import (
    BASE_MODEL,
    BY_VERB,
    EVALUATION,
    FETCHED_MODEL,
    OF_A_ROUND,
    PREPARATION,
    REPORT,
    SAMPLING,
    VERIFICATION,
    WARM_START,
    Stage,
)
from oapl_core.run_folder.integrity import is_intact
from oapl_core.run_folder.ledger import ArtifactEntry
from oapl_core.run_folder.run import Run
from oapl_core.settings.experiment import Experiment


@dataclass(frozen=True)
class Step:
    """One stage process: ``python -m oapl_core.<verb> RUN_DIR <arguments>``."""

    title: str
    """What a person calls it."""
    verb: str
    """Module below ``oapl_core``."""
    round: int | None
    """Round it belongs to, counted from 0; None outside rounds."""
    outputs: tuple[str, ...]
    """Prefixes of the names of its artifacts in the ledger."""
    options: tuple[str, ...] = ()
    """Further arguments."""

    @property
    def arguments(self) -> list[str]:
        """Arguments after the run folder."""
        return [*([] if self.round is None else ["--round", str(self.round)]), *self.options]

    @property
    def stage(self) -> Stage:
        """Its row in the table of stages.

        Raises:
            KeyError: it is a step of no run (a comparison's or an evaluation folder's).
        """
        return BY_VERB[self.verb]

    @property
    def word(self) -> str:
        """What a person calls its stage on the command line: ``sampling``, whatever the round."""
        return self.title.rpartition(": ")[2].replace(" ", "-")

    @property
    def label(self) -> str:
        """Its name in the ledger's stage lines."""
        return stage_label(self.verb, self.arguments)


def stage_label(verb: str, arguments: Sequence[str]) -> str:
    """``rollouts.generate round 0`` for the verb with ``--round 0``."""
    return " ".join([verb, *(argument.lstrip("-") for argument in arguments)])


def _step(stage: Stage, number: int | None = None, folder: int | None = None) -> Step:
    """``stage`` as a step of round ``number``, or of no round, with its artifacts in the folder of round ``folder``."""
    title = stage.title if number is None else f"round {number}: {stage.title}"
    return Step(title, stage.verb, number, stage.outputs(number if folder is None else folder))


def preparation(config: Experiment) -> tuple[Step, ...]:
    """Base model (if it is made here or fetched), problems and prompts, warm start (if there is one)."""
    before = (BASE_MODEL,) if config.pretrain else (FETCHED_MODEL,) if config.hub_model else ()
    return tuple(map(_step, (*before, PREPARATION, *(WARM_START,) * (config.warm_start is not None))))


def round_steps(number: int) -> tuple[Step, ...]:
    """Sample, verify, filter, train."""
    return tuple(_step(stage, number) for stage in OF_A_ROUND)


def verification_beside_sampling(number: int, shares: int = 1) -> tuple[Step, ...]:
    """Judge the parts of round ``number`` as they are sampled, in so many processes; the plan's step does the rest."""
    verification = _step(VERIFICATION, number)
    beside = replace(verification, title=f"{verification.title}, during sampling", options=("--follow",))
    if shares == 1:
        return (beside,)
    return tuple(
        replace(
            beside,
            title=f"{beside.title}, share {share} of {shares}",
            options=("--follow", "--share", f"{share}-of-{shares}"),
        )
        for share in range(1, shares + 1)
    )


def helping_steps(step: Step, shares: int) -> tuple[Step, ...]:
    """What does ``step`` on other machines with the one that does it: all shares but the first, which is the step."""
    return tuple(
        replace(step, title=f"{step.title}, share {share} of {shares}", options=(*step.options, "--share", str(share)))
        for share in range(2, shares + 1)
    )


def conclusion(config: Experiment) -> tuple[Step, ...]:
    """Evaluation and report; the evaluation lies in the folder of the last round, whose epochs it chooses from."""
    return _step(EVALUATION, folder=len(config.rounds) - 1), _step(REPORT)


def steps(config: Experiment) -> tuple[Step, ...]:
    """Every step of a run, in order."""
    rounds = [step for number in range(len(config.rounds)) for step in round_steps(number)]
    return (*preparation(config), *rounds, *conclusion(config))


def finished(run: Run) -> list[Step]:
    """The leading steps that need not run again; the first unfinished one and all after it are left out.

    A step is finished when its last process ended well, each artifact it recorded is still what was recorded (or was
    removed on purpose), and was made from inputs that are still what they were.
    """
    ended = {entry.stage: entry.exit_code for entry in run.ledger.stages()}
    artifacts, removed = run.ledger.artifacts(), run.ledger.removals()
    external: dict[str, str] = {}
    done = []
    for step in steps(run.config):
        mine = [e for name, e in artifacts.items() if name.startswith(step.outputs)]
        ok = (
            ended.get(step.label) == 0
            and bool(mine)
            and all(
                (e.artifact in removed or is_intact(run.root / e.artifact, e))
                and _is_current(run, e, artifacts, external)
                for e in mine
            )
        )
        if not ok:
            break
        done.append(step)
    return done


def _is_current(
    run: Run, entry: ArtifactEntry, artifacts: Mapping[str, ArtifactEntry], external: dict[str, str]
) -> bool:
    """Whether what it was made from is still what it was."""
    for name, digest in entry.inputs.items():
        if name in artifacts:
            now = artifacts[name].sha256
        else:
            if name not in external:
                path = run.place(Path(name))
                external[name] = sha256_once(path) if path.exists() else "missing"
            now = external[name]
        if now != digest:
            return False
    return True


@dataclass(frozen=True)
class StepTime:
    """What a step has cost so far."""

    step: Step
    seconds: float
    """Wall time of all its processes together."""
    added_s: float
    """How much longer the run took for it: all of it, or what a step took longer than the one that it ran during."""
    processes: int


def times(run: Run) -> Iterator[StepTime]:
    """Each started step, in the order of the plan, one that ran during sampling after sampling."""
    entries, before = run.ledger.stages(), 0.0
    for step in _with_followers(run.config):
        mine = [entry.seconds for entry in entries if entry.stage == step.label]
        if mine:
            seconds = sum(mine)
            is_beside = step.options or (run.config.pipeline and step.verb == SAMPLING.verb and step.round)
            yield StepTime(step, seconds, max(0.0, seconds - before) if is_beside else seconds, len(mine))
            before = max(before, seconds) if is_beside else seconds


def _with_followers(config: Experiment) -> Iterator[Step]:
    for step in steps(config):
        yield step
        if step.verb == SAMPLING.verb and step.round is not None:
            yield from verification_beside_sampling(step.round, config.verifier.shares)
