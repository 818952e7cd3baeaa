"""REINFORCE, group-relative (arXiv 2509.24203, section 1), AsymRE, with a lower baseline (4.2), MaxRL, W-REINFORCE.

    g = (1/N) sum_i A_i grad ln pi(y_i),     A_i = r_i - (mean r - shift)

REINFORCE has shift 0, no importance ratio and no clipping: on stored rollouts it is off-policy. A positive shift
(AsymRE, arXiv 2506.20520) gives every rollout some weight and correct ones more, so that wrong ones push less.

MaxRL (arXiv 2602.02710) has A_i = (r_i - mean r) / mean r. Its gradient is the mean of grad ln pi over a group's
correct answers, less the mean over all of them. p is the likelihood of a correct answer. MaxRL's expectation is the
gradient of ln p to the order of the group's size, REINFORCE's that of p. The authors' code (tajwarfahim/maxrl,
compute_maxrl_outcome_advantage) adds 1e-6 to the mean and averages over tokens; this form does not. Of any rewards from
0 up it is the gradient of ln E r, and A lies between -1 and n - 1. Below 0 the logarithm has no meaning. A mean near 0
would then make advantages without bound, so such rewards are refused.

W-REINFORCE (arXiv 2506.01347) has no baseline: wrong answers are pushed down with weight 1, correct ones raised with
0.1 (``weight_right``). 0 is NSR, negative samples alone. Of the paper the abstract and summaries were read. The
authors' code (TianHongZXY/RLVR-Decomposed, verl/trainer/ppo/core_algos.py) gives these advantages to PPO's clipped
ratio, and averages over the batch's tokens. Here there is no ratio, and an answer's tokens are summed.
"""

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import NonNegativeFloat

from oapl_core.errors import DataError
from oapl_core.objectives.group_means import group_mean
from oapl_core.objectives.method import Method
from oapl_core.tables import CORRECT

if TYPE_CHECKING:
    from torch import Tensor


class Reinforce(Method):
    """The group's mean reward is the baseline."""

    name: Literal["reinforce"] = "reinforce"


class AsymRe(Method):
    """REINFORCE with a baseline below the mean."""

    name: Literal["asymre"] = "asymre"
    shift: float = 0.1
    """How far the baseline lies below the group's mean reward."""

    def advantages(self, reward_S: "Tensor", group_S: "Tensor") -> "Tensor":
        """Compute r - (mean r - shift)."""
        return reward_S.double() - (group_mean(reward_S, group_S) - self.shift)


class MaxRl(Method):
    """REINFORCE that weighs a prompt by how rarely it is answered correctly."""

    name: Literal["max_rl"] = "max_rl"

    def advantages(self, reward_S: "Tensor", group_S: "Tensor") -> "Tensor":
        """Compute (r - mean r) / mean r; 0 in a group without a reward.

        Raises:
            DataError: a reward is below 0.
        """
        if len(reward_S) and float(reward_S.min()) < 0:
            raise DataError(
                f"a reward is {float(reward_S.min()):g}, and the objective max_rl is the gradient of ln E r: "
                "give it rewards of 0 or more ([reward]), or take another objective"
            )
        mean_S = group_mean(reward_S, group_S)
        return (reward_S.double() - mean_S) / mean_S.where(mean_S > 0, float("inf"))


class WReinforce(Method):
    """REINFORCE without a baseline, whose correct answers weigh less than the others."""

    name: Literal["w_reinforce"] = "w_reinforce"
    weight_right: NonNegativeFloat = 0.1
    """Weight of correct answers (paper); 0: wrong ones alone."""

    of_correct: ClassVar[bool] = True

    def advantages(self, reward_S: "Tensor", group_S: "Tensor") -> "Tensor":
        """Return the weight of correct answers, and -1 for the others."""
        right_S = reward_S >= CORRECT
        return right_S.double() * self.weight_right - (~right_S).double()
