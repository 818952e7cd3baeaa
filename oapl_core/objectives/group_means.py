"""Sums over the rollouts of one prompt. Every function answers for each sequence what is true of its group, [S]."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def group_sum(x_S: "Tensor", group_S: "Tensor") -> "Tensor":
    """Sum over the group, float64; ``group_S`` are integer labels."""
    # labels may be any integers, as after a filter; places of sums must be 0, 1, 2, ...
    _, index_S = group_S.unique(return_inverse=True)
    total = x_S.double().new_zeros(len(index_S))
    return total.index_add_(0, index_S, x_S.double())[index_S]


def group_size(group_S: "Tensor") -> "Tensor":
    """Number of given rollouts of the group, float64."""
    return group_sum(group_S.new_ones(len(group_S)), group_S)


def group_mean(x_S: "Tensor", group_S: "Tensor") -> "Tensor":
    """Compute the mean over the group, float64."""
    return group_sum(x_S, group_S) / group_size(group_S)


def standardised(x_S: "Tensor", group_S: "Tensor") -> "Tensor":
    """Return (x - mean) / standard deviation (of the population), GRPO's advantage; 0 where all of a group are
    equal.
    """
    centred_S = x_S.double() - group_mean(x_S, group_S)
    deviation_S = group_mean(centred_S.square(), group_S).sqrt()
    # equal rewards whose mean is rounded must not be blown up
    return centred_S * (deviation_S > 1e-9) / deviation_S.clamp(min=1e-9)
