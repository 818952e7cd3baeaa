"""A made-up verifier, and made-up samplers that are kept or break."""

from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

from oapl_core.settings.experiment import EngineConfig
from oapl_core.settings.verifier import VerifierConfig
from oapl_core.verdicts.outcomes import Outcome
from oapl_core.verdicts.verifier import Verdict
from tests.sampling_run import MadeUpSampler

Rate = Callable[[str], float]


class MadeUpVerifier:
    """Right with a chance that depends on the weights that answered; the text holds their hash and a random number."""

    sandbox_level, errors_retried = "none", 0

    def __init__(self, rate: Rate, broken: float = 0.0) -> None:
        self.rate, self.broken, self.judged, self.canaries = rate, broken, 0, 0
        self.remarks: dict[str, int] = {}

    def __call__(self, config: VerifierConfig) -> Self:
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def check_canaries(self, kinds: Collection[str] = (), toolchains: Sequence[Any] = ()) -> None:
        self.canaries += 1

    def stream(self, problems: Sequence[Any], texts: Sequence[str], reasons: Sequence[Any]) -> Iterator[Verdict]:
        assert len(problems) == len(texts) == len(reasons)
        for text in texts:
            self.judged += 1
            weights, number = text.split()
            if float(number) > 1 - self.broken:
                outcome = Outcome.VERIFIER_ERROR
            else:
                outcome = Outcome.PASSED if float(number) < self.rate(weights) else Outcome.WRONG_ANSWER
            yield Verdict("made up", outcome, None, "none")


class Starts:
    """Starts made-up samplers and keeps them."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.stop_after, self.samplers = stop_after, list[MadeUpSampler]()

    def __call__(self, model_dir: Path, config: EngineConfig) -> MadeUpSampler:
        self.samplers.append(MadeUpSampler(model_dir, config, stop_after=self.stop_after))
        return self.samplers[-1]
