r"""A task of reasoning-gym in several attempts: the task scores each answer, and the model is told if it may do better.

Problems are those that `oapl gym` makes; the package is optional (`pip install "oapl[gym]"`). The task judges: a
trajectory earns the score of its last answer, less a share for each attempt before.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from oapl_core.environments.protocol import Action, Observation
from oapl_core.verdicts.answers.answer_rules import maths_by

_FULL = 1.0


class Attempts:
    """Answers in a box, each scored, until one is right or there are no attempts left."""

    is_judge = True

    def __init__(self, attempts: int = 3, cost: float = 0.0) -> None:
        """Allow ``attempts`` at most; each but the first costs ``cost`` of the reward."""
        self._attempts, self._cost = attempts, cost
        self._problem: Mapping[str, Any] = {}
        self._used = 0

    def tools(self) -> Sequence[Callable[..., str]]:
        """Offer no tools: the model only answers."""
        return []

    def reset(self, problem: Mapping[str, Any], seed: int) -> None:
        """Begin with no attempt used."""
        self._problem = {"info": problem.get("info")}

    def step(self, action: Action) -> Observation:
        """Score the answer, and end after a right or the last one.

        Raises:
            ValueError: the problem is not from `oapl gym`.
        """
        # here, as a package that is missing is told of once and by name
        from oapl_core.verdicts.reasoning_gym import score

        self._used += 1
        answer = maths_by("last-box", action.text, False)
        earned = score(self._problem, action.text, {"answer": answer})
        if earned >= _FULL or self._used == self._attempts:
            return Observation(is_done=True, reward=earned - self._cost * (self._used - 1))
        left = self._attempts - self._used
        comment = "I see no answer in \\boxed{}." if answer is None else "That is not right."
        return Observation(text=f"{comment} You may answer again ({left} left).")

    def close(self) -> None:
        """Do nothing: there is nothing to close."""
