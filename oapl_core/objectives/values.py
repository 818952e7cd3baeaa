"""V(x), the value that OAPL's regression subtracts from a reward (paper arXiv 2602.19362, eq. 2).

    V(x) = beta1 ln( (1/n) sum_i exp(r_i / beta1) )        over the n valid rollouts of x's group

beta1 (the value temperature) towards 0 gives the best reward, towards infinity the mean. Computed as
m + beta1 log1p(mean(expm1((r - m) / beta1))) with m = max r: no exponent is positive, so nothing overflows for small
beta1, and nothing cancels for large beta1, where a plain log-sum-exp loses the mean.
"""

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def log_mean_exp_values(reward_S: "Tensor", group_S: "Tensor", value_temperature: float) -> "Tensor":
    """V of each sequence's group.

    Args:
        reward_S: rewards of whole groups: all their valid rollouts, in any order.
        group_S: integer label of each sequence's group, >= 0.
        value_temperature: beta1, from 0 (the limit: the best reward) to infinity (the limit: the mean).

    Returns:
        V_S in float64, equal within a group.

    Raises:
        ValueError: shapes differ, or the temperature is negative or not a number.
    """
    if reward_S.shape != group_S.shape or reward_S.dim() != 1:
        raise ValueError(f"rewards {tuple(reward_S.shape)} and groups {tuple(group_S.shape)} must be two equal vectors")
    if not value_temperature >= 0:
        raise ValueError(f"value_temperature must be >= 0, not {value_temperature}")
    reward_S, (_, index_S) = reward_S.double(), group_S.unique(return_inverse=True)
    groups = int(index_S.max()) + 1 if len(index_S) else 0
    best = reward_S.new_zeros(groups).scatter_reduce_(0, index_S, reward_S, "amax", include_self=False)
    if value_temperature == 0:
        return best[index_S]
    below_S = reward_S - best[index_S]
    if math.isinf(value_temperature):
        return (best + _group_mean(below_S, index_S, groups))[index_S]
    mean = _group_mean((below_S / value_temperature).expm1(), index_S, groups)
    return (best + value_temperature * mean.log1p())[index_S]


def _group_mean(x_S: "Tensor", index_S: "Tensor", groups: int) -> "Tensor":
    total = x_S.new_zeros(groups).index_add_(0, index_S, x_S)
    return total / index_S.bincount(minlength=groups)
