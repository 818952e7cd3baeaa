"""M2PO, second-moment trust policy optimisation (arXiv 2510.01161, algorithm 1).

    g = (1/tokens) sum_i sum_t M_it rho_it A_i grad ln pi(y_it),     A = (r - mean r) / std r

PPO's clip could touch tokens with A > 0 and rho > 1, or A < 0 and rho < 1. M leaves out those of them with the largest
(ln rho)^2, until its mean over the rest is at most the budget. That is an order statistic of the whole step. The step's
tokens are scored once without gradient, and their log-ratios (4 bytes a token) are joined over the ranks. Every rank
finds the same first value that is too large.
"""

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import PositiveFloat

from oapl_core.objectives.inputs import Inputs, Loss
from oapl_core.objectives.method import Method, Scope
from oapl_core.objectives.tokens import TokenAverage, weighted_ratios

if TYPE_CHECKING:
    from torch import Tensor


def first_refused(moment_T: "Tensor", budget: float) -> float:
    """Return the smallest of ``moment_T`` whose inclusion takes the mean of all up to it above ``budget``.

    Infinite if the mean of all is within the budget. Equal values are refused together, so order does not matter.
    """
    sorted_T = moment_T.double().sort().values
    count_T = sorted_T.new_ones(len(sorted_T)).cumsum(0)
    refused_T = sorted_T[sorted_T.cumsum(0) > budget * count_T]
    return float(refused_T[0]) if len(refused_T) else float("inf")


class M2po(Method):
    """GRPO whose clip is a budget for the second moment of the log-ratios."""

    name: Literal["m2po"] = "m2po"
    budget: PositiveFloat = 0.04
    """Largest mean of (ln rho)^2 over the tokens that a clip could touch."""
    token_average: TokenAverage = "batch"

    scope: ClassVar[Scope] = "batch"
    standardises: ClassVar[bool] = True

    def statistics(self, step: Inputs) -> "Tensor":
        """Return the first refused second moment, the same for every sequence, [S, 1]."""
        harmful_ST = step.mask_ST & (step.held * step.advantage_S[:, None] > 0)
        refused = first_refused(step.held[harmful_ST].square(), self.budget)
        return step.advantage_S.new_full((len(step.advantage_S), 1), refused)

    def loss(self, inputs: Inputs) -> Loss:
        """Compute -(1/tokens) sum M rho A."""
        assert inputs.statistics_SK is not None, f"{self.name} needs the tokens of the whole step"
        advantage_S1 = inputs.advantage_S[:, None]
        harmful_ST = inputs.mask_ST & (inputs.held * advantage_S1 > 0)
        # >=: tokens as large as the first refused one go too, so the order of equal ones does not matter
        refused_ST = harmful_ST & (inputs.held.square() >= inputs.statistics_SK)
        value = weighted_ratios(advantage_S1 * ~refused_ST, inputs.log_ratio, inputs, self.token_average)
        return Loss(value, clipped_ST=refused_ST)
