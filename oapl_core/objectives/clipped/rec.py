"""REC, REINFORCE with clipping (arXiv 2509.24203, eq. 8, 18, 19-21, appendix B.7): three clips.

    g = (1/N) sum_i sum_t A_i w_it M_it grad ln pi(y_it),     A_i = r_i - mean r

w = rho = pi/b with importance sampling (IS), 1 without (NoIS). M is one of three masks of ``masks.py``. REC-GSPO masks
whole sequences by their mean log-ratio, q_i = exp(s_i / T_i), and averages over their tokens. The paper's finding: the
clip matters, the ratio does not.
"""

from typing import Literal

from oapl_core.objectives.clipped.masks import Clip, clipped, clipped_loss, one_side, ring, two_side
from oapl_core.objectives.inputs import Inputs, Loss
from oapl_core.objectives.method import Method
from oapl_core.objectives.tokens import TokenAverage


class _Rec(Method):
    importance_sampling: bool = True
    """Whether tokens (of REC-GSPO: sequences) are weighted by their ratio (IS) or not (NoIS)."""
    clip_low: Clip = 0.2
    """Distance below 1 of the ratio's lower bound."""
    clip_high: Clip = 0.2
    """Distance above 1 of the ratio's upper bound."""


class RecOneSide(_Rec):
    """Eq. 8: PPO's mask, low for worse answers and high for better ones. The paper's wide clip: 0.6 and 2.0."""

    name: Literal["rec_one_side"] = "rec_one_side"
    token_average: TokenAverage = "sum"

    def loss(self, inputs: Inputs) -> Loss:
        """Compute the loss under ``tokens.one_side``: clipped where the advantage pushes away from b."""
        kept_ST = one_side(inputs.held, inputs.advantage_S[:, None], self.clip_low, self.clip_high)
        return clipped_loss(kept_ST, inputs, self.token_average, self.importance_sampling)


class RecTwoSide(_Rec):
    """Eq. 18: a band, whatever the advantage's sign."""

    name: Literal["rec_two_side"] = "rec_two_side"
    token_average: TokenAverage = "sum"

    def loss(self, inputs: Inputs) -> Loss:
        """Compute the loss under ``tokens.two_side``: clipped on both sides of 1, for any advantage."""
        kept_ST = two_side(inputs.held, self.clip_low, self.clip_high)
        return clipped_loss(kept_ST, inputs, self.token_average, self.importance_sampling)


class RecRing(_Rec):
    """Eq. 19-21: the band, and tokens far outside of it that the step brings back; without the ratio in the paper."""

    name: Literal["rec_ring"] = "rec_ring"
    importance_sampling: bool = False
    far_low: Clip = 0.6
    """Tokens of better answers count again below 1 - far_low."""
    far_high: Clip = 2.0
    """Tokens of worse answers count again above 1 + far_high."""
    token_average: TokenAverage = "sum"

    def loss(self, inputs: Inputs) -> Loss:
        """Compute the loss under ``tokens.ring``: clipped in a ring around 1."""
        bounds = self.clip_low, self.clip_high, self.far_low, self.far_high
        kept_ST = ring(inputs.held, inputs.advantage_S[:, None], *bounds)
        return clipped_loss(kept_ST, inputs, self.token_average, self.importance_sampling)


class RecGspo(_Rec):
    """Appendix B.7: one ratio q for a sequence, the one-sided mask on it."""

    name: Literal["rec_gspo"] = "rec_gspo"
    clip_low: Clip = 6e-4
    clip_high: Clip = 8e-4

    def loss(self, inputs: Inputs) -> Loss:
        """Compute -(1/N) sum_i A_i M_i q_i, or ln q_i in place of q_i."""
        return sequence_ratio_loss(inputs, self.clip_low, self.clip_high, self.importance_sampling)


def sequence_ratio_loss(inputs: Inputs, low: float, high: float, importance_sampling: bool) -> Loss:
    """Compute -(1/N) sum_i A_i M_i q_i, or ln q_i in place of q_i; q_i = exp(s_i / T_i)."""
    log_q_S = inputs.log_ratio_S / inputs.length_S
    kept_S = one_side(log_q_S.detach(), inputs.advantage_S, low, high)
    weight_S = inputs.advantage_S * kept_S
    # as in tokens.weighted_ratios: the exponential of a clipped sequence may overflow
    term_S = log_q_S.where(kept_S, 0.0)
    value = -(weight_S * (term_S.exp() if importance_sampling else term_S)).sum() / inputs.sizes.sequences
    return Loss(value, clipped_ST=clipped(kept_S[:, None].expand_as(inputs.mask_ST), inputs))
