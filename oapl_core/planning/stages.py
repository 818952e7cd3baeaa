"""The stages of a run in one table: what each is called, which process it is, what it makes, reads, depends on, leaves.

Plan, preflight, `--redo`, `fork`, `clean`, the choice of GPUs and Prefect's retries and tags look here, so that a new
stage is one row. Names of places come from ``Run``; this module reads and writes nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from oapl_core.run_folder.run import (
    CHECKPOINT_DIR,
    DRAW_FILE,
    EVALUATION_DIR,
    GROUPS_FILE,
    IN_FLIGHT,
    REFERENCE_FILE,
    ROLLOUTS_DIR,
    VERDICTS_DIR,
    Run,
    round_name,
)
from oapl_core.settings.rows import RowSource, sources

Places = Callable[[Run, int], tuple[Path, ...]]
"""Paths in a run folder, given the round."""


def _nothing(_run: Run, _number: int) -> tuple[Path, ...]:
    return ()


@dataclass(frozen=True)
class Stage:
    """One kind of step: a process ``python -m oapl_core.<verb> RUN_DIR``."""

    word: str
    """Name that a person gives the stage, in titles and after ``--redo``."""
    verb: str
    """Module below ``oapl_core``; its name stands in the ledger, so it outlives a renaming of ``word``."""
    makes: tuple[str, ...] = ()
    """Beginnings of the names of its artifacts; those of a stage of a round lie below the round's folder."""
    of_round: bool = False
    """Whether each round has one."""
    also_makes: tuple[str, ...] = ()
    """Artifacts that a redo puts aside with the others, but that a finished step need not have."""
    reads: Places = _nothing
    """Files that the stage cannot do without and a rule of `oapl clean` may have removed."""
    decided_by: tuple[str, ...] = ()
    """Settings that its artifacts depend on; a fork that shares them must have the same."""
    scratch: Places = _nothing
    """Files that an unfinished process would resume from."""
    gpus: Literal["engine_gpus", "trainer_gpus"] | None = None
    """GPUs of `[pipeline]` that the stage gets."""
    retries: int = 1
    """Number of times that a failed process is started again."""
    needs: tuple[Literal["gpu", "sandbox"], ...] = ()
    """Devices that Prefect's tag limits (``oapl-gpu``, ``oapl-sandbox``) count."""

    @property
    def title(self) -> str:
        """For people: the word with spaces."""
        return self.word.replace("-", " ")

    def outputs(self, number: int | None) -> tuple[str, ...]:
        """Return beginnings of the names of its artifacts in the ledger."""
        folder = f"{round_name(number)}/" if number is not None else ""
        return tuple(folder + name for name in self.makes)


def _start(run: Run, number: int) -> tuple[Path, ...]:
    # The base model is no artifact, so no rule removes it.
    return (run.policy(number),) if number else ()


def _sampled_with(run: Run, number: int) -> tuple[Path, ...]:
    return _start(run, run.config.sampling_round(number))


def _judged(run: Run, number: int) -> tuple[Path, ...]:
    return run.rollouts(number), run.verdicts(number)


def _trained_on(run: Run, number: int) -> tuple[Path, ...]:
    return run.groups(number), *_start(run, number), *_sampled_with(run, number)


def _measured(run: Run, number: int) -> tuple[Path, ...]:
    # its own answers too: results are made of all of them
    places = *map(run.evaluations, run.config.interim_rounds), run.evaluations()
    return *(path for k in range(number + 1) for path in _start(run, k)), run.checkpoints(number), *places


BASE_MODEL = Stage("base-model", "pretraining.pretrain", ("base_model.json",), needs=("gpu",))
FETCHED_MODEL = Stage("base-model", "pretraining.fetch", ("base_model.json",), retries=2)  # networks break
# A mistake in a problem set is a person's, and groups and reports are arithmetic: trying again changes nothing.
PREPARATION = Stage(
    "problems-and-prompts",
    "problems.prepare",
    ("problems.parquet", "prompts.parquet"),
    retries=0,
)
SAMPLING = Stage(
    "sampling",
    "rollouts.generate",
    (f"{ROLLOUTS_DIR}/",),
    of_round=True,
    also_makes=(DRAW_FILE,),
    reads=_sampled_with,
    decided_by=(
        *("sampling", "engine.dtype", "engine.options"),
        *("rounds.{round}.rows", "rounds.{round}.problems", "rounds.{round}.draw", "rounds.{round}.difficulty"),
    ),
    scratch=lambda run, number: (run.in_flight(number),),
    gpus="engine_gpus",
    retries=2,  # engines die of what other processes do to a GPU, and finished parts stay
    needs=("gpu",),
)
VERIFICATION = Stage(
    "verification",
    "verdicts.verify",
    (VERDICTS_DIR,),  # other versions, and which is used, too
    of_round=True,
    reads=lambda run, number: (run.rollouts(number),),
    decided_by=("verifier", "reward"),
    retries=2,
    needs=("sandbox",),
)
GROUPS = Stage(
    "groups",
    "groups.build",
    (GROUPS_FILE,),
    of_round=True,
    reads=lambda run, number: (*_judged(run, number), *map(run.groups, run.config.groups_before(number))),
    decided_by=tuple(f"rounds.{{round}}.{key}" for key in ("keep", "pass_rate", "truncated", "replay")),
    retries=0,
)
TRAINING = Stage(
    "training",
    "training.train",
    (f"{CHECKPOINT_DIR}/",),
    of_round=True,
    also_makes=(REFERENCE_FILE,),
    reads=_trained_on,
    scratch=lambda run, number: (run.states(number),),
    gpus="trainer_gpus",
    needs=("gpu",),
)
INTERIM = Stage(
    "interim-evaluation",
    "evaluation.interim",
    (f"{EVALUATION_DIR}/",),
    of_round=True,
    reads=lambda run, number: _start(run, number + 1),
    scratch=lambda run, number: tuple(run.evaluations(number).glob(f"*/{ROLLOUTS_DIR}/{IN_FLIGHT}")),
    retries=2,
    needs=("gpu", "sandbox"),
)
EVALUATION = Stage(
    "evaluation",
    "evaluation.evaluate",
    (f"{EVALUATION_DIR}/",),
    reads=_measured,
    scratch=lambda run, _: tuple(run.evaluations().glob(f"*/{ROLLOUTS_DIR}/{IN_FLIGHT}")),
    retries=2,
    needs=("gpu", "sandbox"),
)
REPORT = Stage("report", "reports.write", ("report",), retries=0)

OF_A_ROUND = (SAMPLING, VERIFICATION, GROUPS, TRAINING)
"""Stages in order, where rows are sampled."""


def of_rows(source: RowSource | type[RowSource]) -> tuple[Stage, ...]:
    """Return the stages in order of a round whose rows come from ``source``."""
    if source.verb is None:
        return OF_A_ROUND
    # of the same name as what it takes the place of: the rest of the round is the same
    decided_by = ("rounds.{round}.rows", *source.decided_by)
    return Stage(GROUPS.word, source.verb, GROUPS.makes, of_round=True, decided_by=decided_by, retries=0), TRAINING


_BY_HAND = (
    Stage("audit", "oapl_extras.audit.audit", reads=_judged),
    Stage("export", "oapl_extras.exchange.export", reads=_judged),
)
"""Stages that a person starts, outside of the plan."""
_BEFORE_ROUNDS = (BASE_MODEL, FETCHED_MODEL, PREPARATION)
_OF_ROUNDS = (*OF_A_ROUND, *(stage for source in sources() for stage in of_rows(source)))
BY_VERB = {one.verb: one for one in (*_BEFORE_ROUNDS, *_OF_ROUNDS, INTERIM, EVALUATION, REPORT, *_BY_HAND)}
