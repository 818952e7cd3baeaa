"""Measures the trained arms of a comparison: ``python -m oapl_core.evaluation.together COMPARISON_DIR``.

Reads compare.json and the arms' run folders; writes each arm's evaluation into its own folder, exactly as
``evaluation.evaluate`` would, so that an arm is a run as any other. One engine and one grader serve all arms: a start
costs more than measuring a small model. Answers of checkpoints that arms share (the base model) are sampled once for
each seed; the other arms of that seed get hard links and the same lines of the ledger.
"""

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from oapl_core.comparing.folder import Arm, Comparison
from oapl_core.errors import Interrupted, OaplError
from oapl_core.evaluation.answering import JudgeFactory, Start
from oapl_core.evaluation.evaluate import evaluate
from oapl_core.evaluation.judging import Judge
from oapl_core.planning.plan import conclusion
from oapl_core.progress import say
from oapl_core.rollouts.engine import SamplingEngine
from oapl_core.rollouts.requests import Request, SampledAnswer, Sampler
from oapl_core.run_folder.ledger import StageEntry
from oapl_core.run_folder.run import Run
from oapl_core.settings.experiment import EngineConfig
from oapl_core.settings.verifier import VerifierConfig
from oapl_core.stage import run_verb
from oapl_core.verdicts.verifier import Verifier


def evaluate_arms(comparison: Comparison, start: Start = SamplingEngine, judge: JudgeFactory = Verifier) -> None:
    """Evaluate every trained arm, or what of it is missing.

    Args:
        comparison: its folder.
        start: what to sample with; tests give a made-up sampler.
        judge: what to grade with.

    Raises:
        OaplError: an arm could not be measured; the others were.
    """
    arms = [arm for arm in comparison.arms if arm.is_trained]
    failed: list[tuple[Arm, OaplError]] = []
    shared = _Shared(start, judge)
    with shared:
        for number, arm in enumerate(arms, 1):
            if arm.is_measured:
                continue
            say(f"{arm.name}: arm {number} of {len(arms)}")
            try:
                _evaluate(arm, [other for other in arms if other.seed == arm.seed], shared)
            except Interrupted:
                raise
            except OaplError as error:
                say(f"{arm.name}: {error}")
                failed.append((arm, error))
                shared.end()  # whatever it was doing for this arm; the next one gets a new engine
    if failed:
        first, why = failed[0]
        raise type(why)(f"{first.name}: could not be measured ({why})")


def _evaluate(arm: Arm, same_seed: Iterable[Arm], shared: "_Shared") -> None:
    run, began = arm.run(), time.monotonic()
    for other in same_seed:
        if other is not arm and other.is_measured:
            _adopt(run, other.run())
            break
    evaluate(run, shared.sampler, shared.grader)
    run.ledger.append(StageEntry(conclusion(arm.config)[0].label, round(time.monotonic() - began, 3), 0))


def _adopt(run: Run, other: Run) -> None:
    """Take over the answers of checkpoints that both runs share; ``evaluate`` sees whether they are what it would ask.

    Raises:
        OSError: the file system has no hard links.
    """
    last = f"round_{len(run.config.rounds) - 1}_epoch_"
    mine, theirs = f"{run.name(run.evaluations())}/", f"{other.name(other.evaluations())}/"
    done = run.ledger.artifacts()
    for name, entry in other.ledger.artifacts().items():
        file = name.removeprefix(theirs)
        if not name.startswith(theirs) or file.startswith(last) or mine + file in done:
            continue
        target = run.root / (mine + file)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        os.link(other.root / name, target)
        run.ledger.append(replace(entry, artifact=mine + file, seconds=0.0))


class _Shared:
    """An engine and a grader that are started once and lent to one evaluation after the other."""

    def __init__(self, start: Start, judge: JudgeFactory) -> None:
        """Nothing is started before it is needed."""
        self._start, self._judge_factory = start, judge
        self._stack = ExitStack()
        self._sampler: Sampler | None = None
        self._judge: Judge | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """End both; the next one who asks gets new ones."""
        self._sampler = self._judge = None
        self._stack.close()

    def sampler(self, model: Path, config: EngineConfig) -> Sampler:
        """The engine with the weights of ``model``, for an evaluation that may end what it was given."""
        if self._sampler is None:
            self._sampler = self._stack.enter_context(self._start(model, config))
            return _Lent(self._sampler, self._sampler.startup_s)
        self._sampler.load(model)
        return _Lent(self._sampler, {"shared with other arms": 0.0})

    def grader(self, config: VerifierConfig) -> AbstractContextManager[Judge]:
        """The grader, likewise."""

        @contextmanager
        def lent() -> Iterator[Judge]:
            if self._judge is None:
                self._judge = self._stack.enter_context(self._judge_factory(config))
            yield self._judge

        return lent()


class _Lent:
    """An engine that goes on when who borrowed it is done."""

    def __init__(self, engine: Sampler, startup_s: dict[str, float]) -> None:
        self._engine, self.startup_s = engine, startup_s
        self.name, self.logprobs_mode, self.dtype = engine.name, engine.logprobs_mode, engine.dtype

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _k: type[BaseException] | None, _e: BaseException | None, _t: TracebackType | None) -> None:
        pass

    def sample(self, requests: Iterable[Request], with_logprobs: bool = True) -> Iterator[SampledAnswer]:
        """As the engine."""
        return self._engine.sample(requests, with_logprobs)

    def load(self, model_dir: Path) -> None:
        """As the engine."""
        self._engine.load(model_dir)


if __name__ == "__main__":
    raise SystemExit(run_verb(evaluate_arms, has_round=False, opens=Comparison.open))
