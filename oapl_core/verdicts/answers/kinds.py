"""Kinds of answers that are no programs; each is found by the `kind` of its problems (oapl_core/plugins)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from oapl_core import plugins
from oapl_core.errors import StageFailed
from oapl_core.settings.verifier import VerifierConfig
from oapl_core.verdicts.answers import answer_rules
from oapl_core.verdicts.answers.text_equality import is_equal
from oapl_core.verdicts.canaries import Canary
from oapl_core.verdicts.extraction import final_part
from oapl_core.verdicts.outcomes import Outcome
from oapl_core.verdicts.verifier import AnswerKind, Unread
from oapl_core.verdicts.workers.maths_pool import MathsPool, MathsWorkerDied


class ShortAnswers(AnswerKind):
    """Answers that the rule `verifier.answer` finds, compared with a gold."""

    def __init__(self, config: VerifierConfig, workers: int) -> None:
        """Take the settings; start nothing yet."""
        self._config, self.pool = config, MathsPool(workers)
        self._matches = self._unread = 0

    @property
    def process_ids(self) -> list[int]:
        """Worker processes that are alive."""
        return self.pool.pids

    def close(self) -> None:
        """End every worker process."""
        self.pool.close()

    def answer(self, problem: Mapping[str, Any], text: str, is_cut: bool) -> str | None:
        """Return the answer that counts; a response that was cut may have it. Canaries have one in a box."""
        rule, is_thinking = problem.get("answer_rule", self._config.answer), bool(problem.get("is_thinking"))
        if not (isinstance(rule, dict) and "regex" in rule):
            return answer_rules.maths_by(rule, text, is_thinking)
        self._matches += 1
        try:
            return self.pool.matched(rule["regex"], final_part(text, is_thinking))
        except (TimeoutError, MathsWorkerDied) as error:
            self._unread += 1
            # not only when the part is judged: each costs seconds, and a bad pattern fails on all of a part's thousand
            if self._unread > max(2, self._config.max_error_share * self._matches):
                raise StageFailed(
                    f"verifier.answer: {error}, and on {self._unread} of {self._matches}; make it simpler, above all "
                    "repetitions inside of repetitions, or use another rule"
                ) from None
            raise Unread(str(error)) from None

    def judge(self, problem: Mapping[str, Any], answer: str) -> Outcome:
        """Compare an answer with the gold, by the problem's checker if it has one."""
        if problem.get("checker"):
            equal = bool(plugins.resolve("checker", problem["checker"])("", problem["answer"], answer))
        else:
            equal = self.is_equal(problem, answer)
        return Outcome.PASSED if equal else Outcome.WRONG_ANSWER

    @abstractmethod
    def is_equal(self, problem: Mapping[str, Any], answer: str) -> bool:
        """Tell whether an answer is the gold."""


class MathsAnswers(ShortAnswers):
    """Answers of kind `math`, equal by meaning."""

    @property
    def remarks(self) -> Mapping[str, int]:
        """Counts of pairs that the workers could not judge as others."""
        return {
            "maths answers ran out of time": self.pool.too_slow,
            "only repeat the question": self.pool.echoes,
            "make a library raise": self.pool.broken,
        }

    @property
    def canaries(self) -> Sequence[Canary]:
        """A right and a wrong answer, in a box, whichever answer counts elsewhere."""
        problem = {"kind": "math", "answer": "x^2 + 8x + 16", "answer_rule": "last-box"}
        return (
            (problem | {"problem_id": "canary-math-right"}, r"\boxed{(x+4)^2}", Outcome.PASSED),
            (problem | {"problem_id": "canary-math-wrong"}, r"\boxed{(x+4)^2 + 1}", Outcome.WRONG_ANSWER),
        )

    def is_equal(self, problem: Mapping[str, Any], answer: str) -> bool:
        """Ask a worker process. Raises MathsWorkerDied."""
        return self.pool.equal(problem["answer"], answer, problem.get("statement") or "")


class TextAnswers(ShortAnswers):
    """Answers of kind `text`, equal as `verifier.text` says."""

    def is_equal(self, problem: Mapping[str, Any], answer: str) -> bool:
        """Compare with every gold."""
        return is_equal(problem, answer, self._config.text == "exact")


class OpenAnswers(AnswerKind):
    """Answers of kind `open`: whole responses without a gold, which only `[reward]` or an environment judges."""

    def __init__(self, config: VerifierConfig, workers: int) -> None:
        """Need nothing of the settings."""

    def answer(self, problem: Mapping[str, Any], text: str, is_cut: bool) -> str | None:
        """Return all that follows the reasoning; nothing of a response that was cut."""
        return None if is_cut else final_part(text, bool(problem.get("is_thinking"))).strip() or None

    def judge(self, problem: Mapping[str, Any], answer: str) -> Outcome:
        """Say that it is not for the verifier to judge."""
        return Outcome.OPEN
