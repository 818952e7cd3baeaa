"""NFT, negative-aware fine-tuning (arXiv 2505.18116): wrong answers train the policy that would have given them.

    L = (1/tokens) sum_i w_i sum_t -ln R_it                                        of correct answers
    L = (1/tokens) sum_i w_i sum_t -ln max( (1 - p_i R_it)/(1 - p_i), least )      of the others,     R = pi/b

p is the share of correct answers in the group. b is a mixture: p of a policy of correct answers, and 1 - p of one of
wrong answers. If pi is the former, (b - p pi)/(1 - p) is the latter. It is a likelihood, which supervised training
raises. At pi = b the gradient of a group is that of REINFORCE with A = r - p times w/(1 - p). With w = sqrt((1 - p)/p)
that is GRPO's (section 4 of the paper), with w = 1 - p REINFORCE's.

The rest is the authors' code (NVlabs/NFT, dp_actor.py, train_7B.sh). p is bounded by 0.02 and 0.98, and R by exp(10). A
likelihood below `least` counts as `least`, but keeps its own derivative. Their `normalize` 1 and 2 are
``group_weight``, their sum over tokens divided by 1000 is a mean here. Groups without both kinds of answers cost
nothing, as they are filtered there.
"""

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import NonNegativeFloat, PositiveFloat

from oapl_core.objectives.group_means import group_mean
from oapl_core.objectives.inputs import Inputs, Loss
from oapl_core.objectives.method import Method
from oapl_core.objectives.tokens import TokenAverage, share
from oapl_core.tables import CORRECT

if TYPE_CHECKING:
    from torch import Tensor


class Nft(Method):
    """Supervised training on all answers, each with the policy that it is an answer of."""

    name: Literal["nft"] = "nft"
    group_weight: Literal["wrong", "odds"] = "wrong"
    """w of a group: 1 - p (authors' script), or sqrt((1 - p)/p)."""
    least: PositiveFloat = 1.0
    """Floor of a wrong answer's likelihood ratio (authors' script)."""
    weight_wrong: NonNegativeFloat = 1.0
    """Weight of wrong answers beside correct ones (authors' script); 0 is RFT weighted by w."""
    token_average: TokenAverage = "batch"

    of_correct: ClassVar[bool] = True

    def advantages(self, reward_S: "Tensor", group_S: "Tensor") -> "Tensor":
        """Compute 1 - p for correct answers and -p for others; 0 in a group that has only one kind."""
        right_S = (reward_S >= CORRECT).double()
        share_S = group_mean(right_S, group_S)
        is_mixed_S = (share_S > 1e-9) & (share_S < 1 - 1e-9)
        return (right_S - share_S.clamp(0.02, 0.98)) * is_mixed_S

    def loss(self, inputs: Inputs) -> Loss:
        """Compute -(1/tokens) sum w ln(likelihood ratio)."""
        # the advantage says both: whose answer it is, and p
        right_S1 = inputs.advantage_S[:, None] > 0
        p_S1 = (1.0 - inputs.advantage_S[:, None]).where(right_S1, -inputs.advantage_S[:, None])
        weight_S1 = 1.0 - p_S1 if self.group_weight == "wrong" else ((1.0 - p_S1) / p_S1.clamp(min=0.02)).sqrt()
        weight_S1 = weight_S1 * (inputs.advantage_S[:, None] != 0) * share(inputs, self.token_average)
        ratio_ST = inputs.log_ratio.clamp(max=10.0)
        of_wrong_ST = (1.0 - p_S1 * ratio_ST.exp()) / (1.0 - p_S1)
        # the value of the floor, and the derivative of what is below it
        floored_ST = of_wrong_ST + (of_wrong_ST.clamp(min=self.least) - of_wrong_ST).detach()
        log_ST = ratio_ST.where(right_S1, self.weight_wrong * floored_ST.log())
        is_floored_ST = (of_wrong_ST.detach() < self.least) & (inputs.advantage_S[:, None] < 0) & inputs.mask_ST
        return Loss(-(weight_S1 * log_ST * inputs.mask_ST).sum(), clipped_ST=is_floored_ST)
