"""Engines and a verifier of an evaluation, each started when it is first needed, for every checkpoint.

Starting them costs more than measuring a small model, so they serve one evaluation after the other (`together.py`) and
end with the context. Where there is a command for it, the other `engine.replicas` are processes of their own. They do
the same evaluation and share its parts (`answering.py`); this one concludes it.
"""

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypedDict, Unpack

from oapl_core import plugins
from oapl_core.planning.plan import module_of, stage_label
from oapl_core.progress import say
from oapl_core.rollouts.engine import SamplingEngine
from oapl_core.rollouts.generate import started
from oapl_core.rollouts.requests import Sampler
from oapl_core.run_folder.run import Run
from oapl_core.settings.experiment import EngineConfig
from oapl_core.settings.verifier import VerifierConfig
from oapl_core.verdicts.judges import AnswerVerifier
from oapl_core.verdicts.verifier import Verifier

if TYPE_CHECKING:
    from oapl_core.runner.crew import Crew

Start = Callable[[Path, EngineConfig], Sampler]
VerifierFactory = Callable[[VerifierConfig], AbstractContextManager[AnswerVerifier]]


REPLICA = {"type": int, "default": 0, "help": "which replica of this machine this is; 0 starts the rest"}
OPTIONS = {
    "replica": REPLICA,
    "share": {"type": int, "default": 1, "help": "which of several machines this is, counted from 1"},
}
"""Options of the verbs that evaluate a run, for argparse."""


class Place(TypedDict, total=False):
    """Place of a process among those of a run's evaluation, as its verb gets it."""

    replica: int
    """Number among the ``engine.replicas`` of its machine; 0, the default, starts the others and writes the results."""
    command: Sequence[str]
    """Command that starts another replica, without its arguments; unset: the verb itself."""
    share: int
    """Number among the machines of `fleet.evaluation`, counted from 1, the default; only that one writes results."""


@dataclass(frozen=True)
class Replica:
    """Place of this process among those of one evaluation."""

    number: int = 0
    """0 starts the others of its machine."""
    command: tuple[str, ...] = ()
    """Command that starts another one, but for its number; none: this one is alone."""
    log: Path = Path("evaluation.log")
    """Beside which the others write theirs."""
    share: int = 1
    """Number of its machine, counted from 1; the first of the first writes the results."""

    @property
    def concludes(self) -> bool:
        """Whether this is the one."""
        return self.number == 0 and self.share == 1


class Workers:
    """An engine and a verifier. Use as a context manager."""

    def __init__(
        self, start: Start = SamplingEngine, verifier: VerifierFactory = Verifier, replica: Replica | None = None
    ) -> None:
        """Take what samples and judges, tests give made-up ones; unset ``replica``: alone."""
        self._start, self._new_verifier = start, verifier
        self.replica = replica or Replica()
        self._others: Crew | None = None
        self._stack = ExitStack()
        self._sampler: Sampler | None = None
        self._verifier: AnswerVerifier | None = None
        self._loaded: Path | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.end()

    def end(self) -> None:
        """End both; the next one who asks gets new ones."""
        self._sampler = self._verifier = self._loaded = self._others = None
        self._stack.close()

    @property
    def has_engine(self) -> bool:
        """Whether an engine runs, so that who asks now does not wait for its start."""
        return self._sampler is not None

    def sampler(self, model: Path, config: EngineConfig, parts: int = 1) -> Sampler:
        """Return the engine with the weights of ``model``, which must be of the architecture that it was started with.

        With it start the other replicas, as many as there are ``parts`` for.
        """
        if self._sampler is None:
            count = min(config.replicas, parts)
            if self.replica.command and self.replica.number == 0 and count > 1:
                # before our own engine: it takes its share of the devices, and the others inherit what we may use
                others = plugins.resolve("setting", "engine.replicas")
                self._others = self._stack.enter_context(others(self.replica.command, count, self.replica.log))
            self._sampler = self._stack.enter_context(self._start(model, config))
            say(started(self._sampler))
        elif self._loaded != model:
            self._loaded = None  # weights that were loaded in part are nobody's
            self._sampler.load(model)
        self._loaded = model
        return self._sampler

    def look_around(self) -> None:
        """Say which of the other replicas died."""
        if self._others:
            self._others.report()

    def wait(self) -> None:
        """Give the other replicas a moment to end by themselves, when nothing is left to do."""
        if self._others:
            self._others.wait()

    def verifier(self, config: VerifierConfig, replicas: int = 1) -> AnswerVerifier:
        """Return the verifier, which still has to prove itself to each evaluation (`AnswerVerifier.check_canaries`).

        Each of several ``replicas`` has one, and its share of the cores: programs that wait for one run out of time.
        """
        if self._verifier is None:
            if self.replica.command and replicas > 1 and config.workers is None:
                share = max(1, len(os.sched_getaffinity(0)) // replicas)
                config = config.model_copy(update={"workers": share})
            self._verifier = self._stack.enter_context(self._new_verifier(config))
        return self._verifier


def workers_of(
    run: Run,
    verb: str,
    arguments: Sequence[str],
    start: Start | None,
    verifier: VerifierFactory,
    **place: Unpack[Place],
) -> Workers:
    """Return the workers of one process of ``verb``, which evaluates a run; ``arguments`` come after the run folder."""
    number, share = place.get("replica", 0), place.get("share", 1)
    command = place.get("command", (sys.executable, "-m", module_of(verb)))
    which = ("--share", str(share))
    log = run.log(stage_label(verb, [*arguments, *(which if share > 1 else ())]))
    mine = Replica(number, (*command, str(run.root), *arguments, *which), log, share)
    return Workers(start or partial(SamplingEngine, replica=number), verifier, mine)
