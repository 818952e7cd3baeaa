"""REC, REINFORCE with clipping (arXiv 2509.24203, eq. 8, 18, 19-21, appendix B.7): which clip, with a ratio or without.

    g = (1/N) sum_i sum_t A_i w_it M_it grad ln pi(y_it),     A_i = r_i - mean r

w = rho = pi/b with importance sampling (IS), 1 without (NoIS). M is one of three masks of ``tokens.py``; REC-GSPO masks
whole sequences by their mean log-ratio, q_i = exp(s_i / T_i), and averages over their tokens. The paper's finding: the
clip matters, the ratio does not.
"""

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from oapl_core.objectives.inputs import Inputs, Loss
from oapl_core.objectives.method import Method
from oapl_core.objectives.tokens import (
    TokenAverage,
    clipped,
    one_side,
    ring,
    two_side,
    weighted_logprobs,
    weighted_ratios,
)

if TYPE_CHECKING:
    from torch import Tensor

Clip = Annotated[float, Field(ge=0.0)]


def rec_loss(kept_ST: "Tensor", importance_sampling: bool, inputs: Inputs, average: TokenAverage) -> Loss:
    """The direction above for a mask."""
    weight_ST = inputs.advantage_S[:, None] * kept_ST
    if importance_sampling:
        value = weighted_ratios(weight_ST, inputs.log_ratio, inputs, average)
    else:
        value = weighted_logprobs(weight_ST, inputs, average)
    return Loss(value, clipped_ST=clipped(kept_ST, inputs))


class RecOneSide(Method):
    """Eq. 8: PPO's mask."""

    name: Literal["rec_one_side"] = "rec_one_side"
    """Names the folder of the checkpoints it makes."""
    importance_sampling: bool = True
    """Whether tokens are weighted by pi/b (IS) or not (NoIS)."""
    clip_low: Clip = 0.2
    """1 - clip_low bounds the ratio of tokens of worse answers. The paper's wide clip: 0.6."""
    clip_high: Clip = 0.2
    """1 + clip_high bounds the ratio of tokens of better answers. The paper's wide clip: 2.0."""
    token_average: TokenAverage = "sum"
    """How tokens are weighed."""

    def loss(self, inputs: Inputs) -> Loss:
        """With ``tokens.one_side``."""
        kept_ST = one_side(inputs.held, inputs.advantage_S[:, None], self.clip_low, self.clip_high)
        return rec_loss(kept_ST, self.importance_sampling, inputs, self.token_average)


class RecTwoSide(Method):
    """Eq. 18: a band, whatever the advantage's sign."""

    name: Literal["rec_two_side"] = "rec_two_side"
    """Names the folder of the checkpoints it makes."""
    importance_sampling: bool = True
    """Whether tokens are weighted by pi/b (IS) or not (NoIS)."""
    clip_low: Clip = 0.2
    """1 - clip_low is the band's lower end."""
    clip_high: Clip = 0.2
    """1 + clip_high is the band's upper end."""
    token_average: TokenAverage = "sum"
    """How tokens are weighed."""

    def loss(self, inputs: Inputs) -> Loss:
        """With ``tokens.two_side``."""
        kept_ST = two_side(inputs.held, self.clip_low, self.clip_high)
        return rec_loss(kept_ST, self.importance_sampling, inputs, self.token_average)


class RecRing(Method):
    """Eq. 19-21: the band, and tokens far outside of it that the step brings back."""

    name: Literal["rec_ring"] = "rec_ring"
    """Names the folder of the checkpoints it makes."""
    importance_sampling: bool = False
    """Whether tokens are weighted by pi/b (IS) or not (NoIS, the paper's)."""
    clip_low: Clip = 0.2
    """1 - clip_low is the band's lower end."""
    clip_high: Clip = 0.2
    """1 + clip_high is the band's upper end."""
    far_low: Clip = 0.6
    """Tokens of better answers count again below 1 - far_low."""
    far_high: Clip = 2.0
    """Tokens of worse answers count again above 1 + far_high."""
    token_average: TokenAverage = "sum"
    """How tokens are weighed."""

    def loss(self, inputs: Inputs) -> Loss:
        """With ``tokens.ring``."""
        bounds = self.clip_low, self.clip_high, self.far_low, self.far_high
        kept_ST = ring(inputs.held, inputs.advantage_S[:, None], *bounds)
        return rec_loss(kept_ST, self.importance_sampling, inputs, self.token_average)


class RecGspo(Method):
    """Appendix B.7: one ratio for a sequence, the one-sided mask on it."""

    name: Literal["rec_gspo"] = "rec_gspo"
    """Names the folder of the checkpoints it makes."""
    importance_sampling: bool = True
    """Whether sequences are weighted by q_i (IS) or not (NoIS)."""
    clip_low: Clip = 6e-4
    """1 - clip_low bounds q of worse answers."""
    clip_high: Clip = 8e-4
    """1 + clip_high bounds q of better answers."""

    def loss(self, inputs: Inputs) -> Loss:
        """-(1/N) sum_i A_i M_i q_i, or ln q_i in place of q_i."""
        return sequence_ratio_loss(inputs, self.clip_low, self.clip_high, self.importance_sampling)


def sequence_ratio_loss(inputs: Inputs, low: float, high: float, importance_sampling: bool) -> Loss:
    """-(1/N) sum_i A_i M_i q_i, or ln q_i in place of q_i; q_i = exp(s_i / T_i)."""
    log_q_S = inputs.log_ratio_S / inputs.length_S
    kept_S = one_side(log_q_S.detach(), inputs.advantage_S, low, high)
    weight_S = inputs.advantage_S * kept_S
    term_S = log_q_S.where(kept_S, 0.0)
    value = -(weight_S * (term_S.exp() if importance_sampling else term_S)).sum() / inputs.counts.sequences
    return Loss(value, clipped_ST=clipped(kept_S[:, None].expand_as(inputs.mask_ST), inputs))
