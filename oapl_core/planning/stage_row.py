"""One row of the table of stages: everything that plan, flows, preflight, forks, cleaning and pages ask of a stage.

An optional stage declares itself by one such row in a folder of its own, found by name: the kind `stage` of
oapl_core/plugins. Its module may import this one, but not the table (stages.py), which looks it up.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from oapl_core import plugins
from oapl_core.run_folder.run import IN_FLIGHT, ROLLOUTS_DIR, Run, round_name
from oapl_core.settings.evaluation import OF_ALL_ROUNDS
from oapl_core.settings.experiment import Experiment

if TYPE_CHECKING:
    from oapl_core.run_folder.measurement import Measurement

Places = Callable[[Run, int], tuple[Path, ...]]
"""Paths in a run folder, given the round."""


def start_of(run: Run, number: int) -> tuple[Path, ...]:
    """Return the checkpoint that round ``number`` starts training at; none for the base, which no rule removes."""
    return (run.policy(number),) if number else ()


def unfinished_answers(run: Run, number: int) -> tuple[Path, ...]:
    """List the folders of parts that evaluations have begun in round ``number``; the run's end is the last round's."""
    return tuple(run.evaluations(number).glob(f"*/{ROLLOUTS_DIR}/{IN_FLIGHT}"))


def earlier_choices(run: Run) -> dict[str, tuple[int, int]]:
    """Return round and epoch of the checkpoints before the last round's that may be chosen, by the names of results."""
    is_asked = run.config.evaluation.choose_on == OF_ALL_ROUNDS
    return dict(plugins.resolve("setting", "evaluation.choose_on")(run)) if is_asked else {}


@dataclass(frozen=True)
class Stage:
    """One kind of step: a process ``python -m oapl_core.<verb> RUN_DIR``."""

    word: str
    """Name that a person gives the stage, in titles and after ``--redo``."""
    verb: str
    """Module below ``oapl_core``, or ``place``. The name stands in the ledger, so it outlives renamings."""
    makes: tuple[str, ...] = ()
    """Beginnings of the names of its artifacts; those of a stage of a round lie below the round's folder."""
    of_round: bool = False
    """Whether each round has one."""
    also_makes: tuple[str, ...] = ()
    """Artifacts that a redo puts aside with the others, but that a finished step need not have."""
    reads: Places = lambda _run, _number: ()
    """Files that the stage cannot do without and a rule of `oapl clean` may have removed."""
    decided_by: tuple[str, ...] = ()
    """Settings that its artifacts depend on; a fork that shares them must have the same."""
    scratch: Places = lambda _run, _number: ()
    """Files that an unfinished process would resume from."""
    gpus: Literal["engine_gpus", "trainer_gpus"] | None = None
    """GPUs of `[pipeline]` that the stage gets."""
    retries: int = 1
    """Number of times that a failed process is started again."""
    needs: tuple[Literal["gpu", "sandbox"], ...] = ()
    """Devices that Prefect's tag limits (``oapl-gpu``, ``oapl-sandbox``) count; who needs a sandbox judges answers."""
    room: str = ""
    """Name of the kind `room` of oapl_core/plugins: the estimate of the bytes that the rest of it writes. Empty: little
    is written, or the stage says so itself."""
    measured: "Callable[[Run], Iterable[Measurement]]" = lambda _run: ()
    """Numbers that an optional stage has left in the ledger, in order (``measurements.py``)."""
    after: Callable[[Experiment], Collection[int]] | None = None
    """Rounds after whose training an optional stage comes. No other step reads what it makes. A fork therefore carries
    it only where nothing that decides it differs. None: a stage of every run, or of none."""
    answers: Callable[[Experiment, Mapping[str, int]], int] = lambda _config, _problems: 0
    """Answers that an optional stage samples for itself alone in a run, by the number of problems of each split."""
    place: str = ""
    """Module of the verb where that does not lie below ``oapl_core``: the process is ``python -m`` of it."""

    @property
    def module(self) -> str:
        """Module that the process runs."""
        is_core = (Path(__file__).parents[1] / self.verb.partition(".")[0]).is_dir()
        # of other packages the verb is the whole name
        return self.place or (f"oapl_core.{self.verb}" if is_core else self.verb)

    @property
    def title(self) -> str:
        """For people: the word with spaces."""
        return self.word.replace("-", " ")

    def outputs(self, number: int | None) -> tuple[str, ...]:
        """Return beginnings of the names of its artifacts in the ledger."""
        folder = f"{round_name(number)}/" if number is not None else ""
        return tuple(folder + name for name in self.makes)
