"""The real verifier as the judge of curation (oapl_extras/problem_sets/curation.py), which may not import it."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self

from oapl_core.settings.verifier import VerifierConfig
from oapl_core.verdicts.answers.answer_rules import maths
from oapl_core.verdicts.attacks import rewards_doing_nothing
from oapl_core.verdicts.outcomes import Outcome
from oapl_core.verdicts.rules import answer_of
from oapl_core.verdicts.verifier import Verifier
from oapl_core.verdicts.workers.maths_pool import MathsPool
from oapl_extras.problem_sets.curation import Word

_WORDS: dict[Outcome, Word] = {
    Outcome.PASSED: "passes",
    Outcome.NOT_JUDGEABLE: "not judgeable",
    Outcome.VERIFIER_ERROR: "broken",
}


class VerifierJudge:
    """Judges solutions and gold answers as answers of a model are judged. Use as a context manager."""

    def __init__(self, config: VerifierConfig) -> None:
        """Make the verifier and the pools; no process is started yet."""
        self._verifier = Verifier(config)
        self._threads = ThreadPoolExecutor(config.workers or 2)
        self._maths = MathsPool(config.workers or 2)

    def __enter__(self) -> Self:
        self._verifier.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, t: TracebackType | None) -> None:
        self._threads.shutdown()  # first: its threads wait for answers of the workers
        self._maths.close()
        self._verifier.__exit__(kind, error, t)

    def programs(self, problems: Sequence[Mapping[str, Any]], sources: Sequence[str]) -> list[Word]:
        """Judge each program as a response with one fence, like any other."""
        # the same path as a model's answer: a solution that extraction would miss proves nothing about the problem
        texts = [answer_of(source, problem) for problem, source in zip(problems, sources, strict=True)]
        verdicts = self._verifier.verify(problems, texts, ["stop"] * len(texts))
        return [_WORDS.get(verdict.outcome, "fails") for verdict in verdicts]

    def answers(self, answers: Sequence[str]) -> list[bool]:
        """Judge each answer against itself, by the worker's word and not by the shortcut for equal texts. Nobody could
        give an answer that does not come out of a box, for its braces say."""
        replies = self._threads.map(lambda answer: self._maths.judge(answer, answer), answers)
        boxed = [maths(f"\\boxed{{{answer}}}") is not None for answer in answers]
        return [reply["equal"] is True and fits for reply, fits in zip(replies, boxed, strict=True)]

    def equal(self, pairs: Sequence[tuple[str, str]]) -> list[bool]:
        """Tell whether each answer would be judged as correct as the gold answer is."""
        return list(self._threads.map(lambda pair: self._maths.equal(*pair), pairs))

    def unearned(self, problems: Sequence[Mapping[str, Any]]) -> list[str | None]:
        """Find the strategy that passes each problem by doing nothing, if there is one."""
        return rewards_doing_nothing(self._verifier, problems)
