"""What evaluation needs of a grader, and an answer with its verdict as a row of tables.EVALUATIONS."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from oapl_core.rollouts.requests import SampledAnswer

Row = Mapping[str, Any]


class Judged(Protocol):
    """A verdict, as far as it matters here."""

    @property
    def reward(self) -> float | None:
        """1, 0, or None if the answer could not be judged."""
        ...

    @property
    def outcome(self) -> str:
        """Why."""
        ...


class Judge(Protocol):
    """What grades answers; ``oapl_core.verdicts.verifier.Verifier`` is one."""

    @property
    def sandbox_level(self) -> str:
        """The isolation that was proven."""
        ...

    def check_canaries(self) -> None:
        """Raise StageFailed if known answers are misjudged."""
        ...

    def stream(
        self, problems: Sequence[Row], texts: Sequence[str], finish_reasons: Sequence[str | None]
    ) -> Iterator[Judged]:
        """One verdict for each text, in order."""
        ...


def row_of(label: str, policy_hash: str, problem: Row, sample: int, answer: SampledAnswer, verdict: Judged) -> Row:
    """A row of tables.EVALUATIONS."""
    request = answer.request
    return {
        "checkpoint": label,
        "policy_hash": policy_hash,
        "split": problem["split"],
        "problem_id": problem["problem_id"],
        "kind": problem["kind"],
        "sample": sample,
        "reward": verdict.reward,
        "outcome": str(verdict.outcome),
        "response_tokens": len(answer.response_ids),
        "finish_reason": answer.finish_reason,
        "text": answer.text,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "max_tokens": request.max_tokens,
        "seed": request.seed,
    }
