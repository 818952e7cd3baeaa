"""Pairwise-weighted REINFORCE (arXiv 2509.24203, eq. 9) with weights w_i w_j of the pairs.

    g = (sum_j w_j) (1/N) sum_i w_i (r_i - rbar_w) grad ln pi(y_i),     rbar_w = sum_j w_j r_j / sum_j w_j

The sums run over the group. The paper leaves the weights open; here w_i = exp(r_i / temperature), so that better
answers are compared more closely. An infinite temperature gives REINFORCE, times the group's size.
"""

from typing import TYPE_CHECKING, Literal

from pydantic import PositiveFloat

from oapl_core.objectives.group_means import group_sum
from oapl_core.objectives.method import Method

if TYPE_CHECKING:
    from torch import Tensor


class PairwiseWeighted(Method):
    """REINFORCE with a weight for each answer."""

    name: Literal["pairwise_weighted"] = "pairwise_weighted"
    weight_temperature: PositiveFloat = 1.0
    """Temperature of w_i = exp(r_i / temperature), in units of the reward."""

    def advantages(self, reward_S: "Tensor", group_S: "Tensor") -> "Tensor":
        """Compute (sum_j w_j) w_i (r_i - rbar_w)."""
        reward_S = reward_S.double()
        weight_S = (reward_S / self.weight_temperature).exp()
        # once for all of a group: the sum over pairs factorises into sums over answers
        total_S = group_sum(weight_S, group_S)
        return total_S * weight_S * (reward_S - group_sum(weight_S * reward_S, group_S) / total_S)
