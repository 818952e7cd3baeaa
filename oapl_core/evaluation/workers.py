"""What an evaluation works with: an engine and a verifier, each started when it is first needed, for every checkpoint.

Starting them costs more than measuring a small model, so they serve one evaluation after the other (`together.py`) and
end with the context.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any, Protocol, Self

from oapl_core.progress import say
from oapl_core.rollouts.engine import SamplingEngine
from oapl_core.rollouts.generate import started
from oapl_core.rollouts.requests import Sampler
from oapl_core.settings.experiment import EngineConfig
from oapl_core.settings.verifier import VerifierConfig
from oapl_core.verdicts.verifier import Verdict, Verifier


class AnswerVerifier(Protocol):
    """What judges answers; ``oapl_core.verdicts.verifier.Verifier`` is one."""

    @property
    def sandbox_level(self) -> str:
        """The isolation that was proven."""
        ...

    def check_canaries(self) -> None:
        """Raise StageFailed if known answers are misjudged."""
        ...

    def stream(
        self, problems: Sequence[Mapping[str, Any]], texts: Sequence[str], finish_reasons: Sequence[str | None]
    ) -> Iterator[Verdict]:
        """One verdict for each text, in order."""
        ...


Start = Callable[[Path, EngineConfig], Sampler]
VerifierFactory = Callable[[VerifierConfig], AbstractContextManager[AnswerVerifier]]


class Workers:
    """An engine and a verifier. Use as a context manager."""

    def __init__(self, start: Start = SamplingEngine, verifier: VerifierFactory = Verifier) -> None:
        """What to sample and judge with; tests give made-up ones."""
        self._start, self._new_verifier = start, verifier
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
        self._sampler = self._verifier = self._loaded = None
        self._stack.close()

    @property
    def has_engine(self) -> bool:
        """Whether an engine runs, so that who asks now does not wait for its start."""
        return self._sampler is not None

    def sampler(self, model: Path, config: EngineConfig) -> Sampler:
        """The engine with the weights of ``model``, which must be of the architecture that it was started with."""
        if self._sampler is None:
            self._sampler = self._stack.enter_context(self._start(model, config))
            say(started(self._sampler))
        elif self._loaded != model:
            self._loaded = None  # weights that were loaded in part are nobody's
            self._sampler.load(model)
        self._loaded = model
        return self._sampler

    def verifier(self, config: VerifierConfig) -> AnswerVerifier:
        """The verifier, which still has to prove itself to each evaluation (`AnswerVerifier.check_canaries`)."""
        if self._verifier is None:
            self._verifier = self._stack.enter_context(self._new_verifier(config))
        return self._verifier
