"""Losses of pairs of rollouts of one prompt: the group surrogate, REBEL, AGRO. They see a whole group at once.

With a_i = r_i - tau s_i each loss is, up to a factor, a group's variance of a. A group of K has sum_{i<j} (a_i - a_j)^2
= K sum_i (a_i - abar)^2, hence:

    group surrogate (arXiv 2509.24203, eq. 6)    (1/K^2) sum_{i<j} (a_i - a_j)^2 / (1 + tau)^2
    REBEL (arXiv 2404.16767, eq. 9)              mean of (a_i - a_j)^2 over the pairs, tau = 1/eta
    AGRO (arXiv 2503.19612), the form taken:     half of the unbiased variance of a, tau = beta

Each is averaged over the groups of the step. At the minimum a is the same for all answers of a prompt: V without an
estimate. abar is a constant here, because its derivative is multiplied by sum_i (a_i - abar) = 0. Value and gradient
are exact for any split of a group over micro-batches, as long as abar comes from the whole group.
"""

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import PositiveFloat

from oapl_core.objectives.group_means import group_mean, group_size
from oapl_core.objectives.inputs import Inputs, Loss
from oapl_core.objectives.method import Method, Scope

if TYPE_CHECKING:
    from torch import Tensor


class GroupRegression(Method):
    """Base of the three regressions; they differ in ``factor``."""

    regression_temperature: PositiveFloat
    """tau."""

    scope: ClassVar[Scope] = "group"

    def factor(self, size_S: "Tensor") -> "Tensor":
        """Return the factor of a group's sum of squares, [S]; ``size_S`` is K of each sequence's group."""
        raise NotImplementedError

    def statistics(self, step: Inputs) -> "Tensor":
        """Compute abar and K of each sequence's group, [S, 2]."""
        a_S = step.reward_S.double() - self.regression_temperature * step.log_ratio_S.detach()
        mean_and_size_S2 = a_S.new_zeros(len(a_S), 2)
        mean_and_size_S2[:, 0], mean_and_size_S2[:, 1] = group_mean(a_S, step.group_S), group_size(step.group_S)
        return mean_and_size_S2

    def loss(self, inputs: Inputs) -> Loss:
        """Compute (1/groups) sum_i factor (a_i - abar)^2."""
        assert inputs.statistics_SK is not None, f"{self.name} needs the means of whole groups"
        mean_S, size_S = inputs.statistics_SK.unbind(1)
        residual_S = mean_S - (inputs.reward_S.double() - self.regression_temperature * inputs.log_ratio_S)
        # a mean over groups: each has its own K in the factor, and sums over its answers add up over micro-batches
        value = (self.factor(size_S) * residual_S.square()).sum() / inputs.sizes.groups
        return Loss(value, residual_S=residual_S.detach())


class GroupSurrogate(GroupRegression):
    """Eq. 6 of arXiv 2509.24203."""

    name: Literal["group_surrogate"] = "group_surrogate"
    regression_temperature: PositiveFloat = 0.1
    """tau of a = r - tau s."""

    def factor(self, size_S: "Tensor") -> "Tensor":
        """Return 1 / (K (1 + tau)^2), [S]."""
        return 1.0 / (size_S * (1.0 + self.regression_temperature) ** 2)


class Rebel(GroupRegression):
    """Regress differences of log-ratios on differences of rewards, all pairs of a group."""

    name: Literal["rebel"] = "rebel"
    regression_temperature: PositiveFloat = 1.0
    """1/eta, the paper's learning rate of the regression; eta = 1 in its code for language models."""

    def factor(self, size_S: "Tensor") -> "Tensor":
        """Return 2 / (K - 1): K times the sum of squares over K (K - 1) / 2 pairs. A group of one has no pair and no
        loss.
        """
        return 2.0 / (size_S - 1.0).clamp(min=1.0)


class Agro(GroupRegression):
    """Any-generation reward optimisation: the answers of a prompt should agree on a."""

    name: Literal["agro"] = "agro"
    regression_temperature: PositiveFloat = 1e-3
    """beta of the KL-regularised objective."""

    def factor(self, size_S: "Tensor") -> "Tensor":
        """Compute 1 / (2 (K - 1)); a group of one has no variance."""
        return 0.5 / (size_S - 1.0).clamp(min=1.0)
