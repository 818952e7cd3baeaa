"""M2PO, second-moment trust policy optimisation (arXiv 2510.01161, algorithm 1).

    g = (1/tokens) sum_i sum_t M_it rho_it A_i grad ln pi(y_it),     A = (r - mean r) / std r

PPO's clip could touch tokens with A > 0 and rho > 1, or A < 0 and rho < 1. M leaves out those of them with the largest
(ln rho)^2, until its mean over the rest is at most the budget. That is an order statistic of the whole step. The step's
tokens are scored once without gradient, and their log-ratios (4 bytes a token) are joined over the ranks. Every rank
finds the same first value that is too large.

The authors' code (Infini-AI-Lab/M2PO af54a3e, core_algos.py) differs, and ``moment = "capped"`` is its form. It caps
the moments instead of leaving them out. Of v_1 <= .. <= v_n it finds the first v_k with mean min(v, v_k) at least the
budget. It clips from v_{k-1} on, so more tokens are silenced. Its floor (``least_low``, ``least_high``) never clips a
ratio between 1 - low and 1 + high. Its function has 0.3 and 0.5, its scripts have none.
"""

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import PositiveFloat

from oapl_core.objectives.clipped.masks import Clip, one_side, weighted_ratios
from oapl_core.objectives.inputs import Inputs, Loss
from oapl_core.objectives.method import Method, Scope
from oapl_core.objectives.tokens import TokenAverage

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


def first_capped(moment_T: "Tensor", budget: float) -> float:
    """Return the smallest of ``moment_T`` that the authors' code clips.

    Sorted, it is the value before the first v_k with sum min(v, v_k) of at least ``budget`` times their number, or the
    smallest itself. Infinite if the mean of all is within the budget.
    """
    sorted_T = moment_T.double().sort().values
    n = len(sorted_T)
    if not n or float(sorted_T.mean()) <= budget:
        return float("inf")
    above_T = sorted_T.new_ones(n).cumsum(0).flip(0) - 1
    reached_T = sorted_T.cumsum(0) + above_T * sorted_T >= budget * n
    return float(sorted_T[max(0, int(reached_T.nonzero()[0]) - 1)])


class M2po(Method):
    """GRPO whose clip is a budget for the second moment of the log-ratios."""

    name: Literal["m2po"] = "m2po"
    budget: PositiveFloat = 0.04
    """Largest mean of (ln rho)^2 over the tokens that a clip could touch."""
    moment: Literal["masked", "capped"] = "masked"
    """How the mean is brought within the budget: by leaving tokens out (paper), or by capping them (authors' code)."""
    least_low: Clip = 0.0
    """Distance below 1 up to which no ratio is clipped (authors' function: 0.3)."""
    least_high: Clip = 0.0
    """Distance above 1 up to which no ratio is clipped (authors' function: 0.5)."""
    token_average: TokenAverage = "batch"

    scope: ClassVar[Scope] = "batch"
    standardises: ClassVar[bool] = True

    def statistics(self, step: Inputs) -> "Tensor":
        """Return the first refused second moment, the same for every sequence, [S, 1]."""
        harmful_ST = step.mask_ST & (step.held * step.advantage_S[:, None] > 0)
        first = first_capped if self.moment == "capped" else first_refused
        refused = first(step.held[harmful_ST].square(), self.budget)
        return step.advantage_S.new_full((len(step.advantage_S), 1), refused)

    def loss(self, inputs: Inputs) -> Loss:
        """Compute -(1/tokens) sum M rho A."""
        assert inputs.statistics_SK is not None, f"{self.name} needs the tokens of the whole step"
        advantage_S1 = inputs.advantage_S[:, None]
        harmful_ST = inputs.mask_ST & (inputs.held * advantage_S1 > 0)
        # >=: tokens as large as the first refused one go too, so the order of equal ones does not matter
        refused_ST = harmful_ST & (inputs.held.square() >= inputs.statistics_SK)
        if self.least_low or self.least_high:
            refused_ST &= ~one_side(inputs.held, advantage_S1, self.least_low, self.least_high)
        value = weighted_ratios(advantage_S1 * ~refused_ST, inputs.log_ratio, inputs, self.token_average)
        return Loss(value, clipped_ST=refused_ST)
