"""Verdicts by an environment on its trajectories: its own failure is no verdict, its rewards may be one.

Pure. Where the environment is no judge, the verifier judges the text of the last turn as it judges any answer. Where it
is one, the verifier only finds the answer there, for parts of `[reward]` and functions.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from oapl_core.tables import as_stored, is_correct
from oapl_core.turns import FAILED
from oapl_core.verdicts.outcomes import Outcome
from oapl_core.verdicts.programs import EXCERPT_CHARACTERS
from oapl_core.verdicts.verifier import Reward, Verdict

_FAILED_EXCERPT = "environment: "


@dataclass(frozen=True)
class Played:
    """Reward or failure of one trajectory."""

    reward: float | None = None
    """Sum over its turns; None: the environment is no judge."""
    failure: str | None = None
    """Reason why the environment failed; None: it did not."""

    @classmethod
    def of(cls, finish_reason: str | None, turns: Mapping[str, Any]) -> "Played":
        """Read ``finish_reason`` and the columns ``tool_calls`` and ``turn_rewards`` of a row."""
        if finish_reason == FAILED:
            calls = turns["tool_calls"]
            return cls(failure=calls[-1]["result"] if calls else "the environment failed")
        rewards = turns["turn_rewards"]
        return cls(None if rewards is None else as_stored(sum(rewards)))

    def asked(self, problem: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the problem for the verifier, which finds an answer and does not judge where the environment does."""
        return problem if self.reward is None else {**problem, "is_judged": True}

    def text(self, said: str) -> str:
        """Return the text for the verifier: nothing where the environment failed."""
        return said if self.failure is None else ""

    def verdict(self, verdict: Verdict, right_from: float) -> Verdict:
        """Return the verdict with the environment's word; ``right_from``: the reward of a correct answer."""
        if self.failure is not None:
            excerpt = f"{_FAILED_EXCERPT}{self.failure}"[:EXCERPT_CHARACTERS]
            return replace(verdict, outcome=Outcome.VERIFIER_ERROR, excerpt=excerpt)
        if self.reward is None:
            return verdict
        outcome = Outcome.PASSED if is_correct(self.reward, right_from) else Outcome.WRONG_ANSWER
        return replace(verdict, outcome=outcome, excerpt=None, earned=Reward(self.reward, {}))

    @staticmethod
    def has_failed(row: Mapping[str, Any]) -> bool:
        """Tell whether a row of VERDICTS says that an environment failed."""
        return row["outcome"] == Outcome.VERIFIER_ERROR and str(row["excerpt"]).startswith(_FAILED_EXCERPT)
