"""LUFFY (arXiv 2504.14945): own answers by their ratio, demonstrations beside them in the group by a shaped one.

    L = -(1/N) [ sum_{i own} sum_t A_i rho_it M_it + sum_{j shown} sum_t A_j f(pi_jt) ],     f(x) = x / (x + gamma)

A = r - mean r over all rows of the group, own and shown. rho = pi/b. M is GRPO's mask, if it has bounds. A row
without recorded log-probs is a demonstration. The paper takes the policy behind it as 1 everywhere, so its ratio is pi
itself. The gradient by ln pi of a token is A gamma pi / (pi + gamma)^2, largest at pi = gamma. Without the shaping it
is A pi, so that tokens which the policy finds unlikely are forgotten.

Defaults are those of the authors' script (ElliottYan/LUFFY 01f4ae0, exp_scripts/train.sh): gamma 0.1, no clip, no
division by the standard deviation. Their sum over tokens is divided by a constant, here by the number of sequences.
The function is `compute_token_on_off_policy_loss` in luffy/verl/verl/mix_src/mix_core_alg.py.
"""

import math
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import PositiveFloat

from oapl_core.objectives.clipped.masks import Clip, clipped, one_side, weighted_ratios
from oapl_core.objectives.inputs import Inputs, Loss
from oapl_core.objectives.method import Method
from oapl_core.objectives.tokens import TokenAverage, share

if TYPE_CHECKING:
    from torch import Tensor


class Luffy(Method):
    """Own answers and demonstrations of one group: importance ratios for those, shaped ones for these."""

    name: Literal["luffy"] = "luffy"
    shaping: PositiveFloat = 0.1
    """gamma of f(x) = x / (x + gamma), by which tokens of demonstrations are weighed."""
    clip_low: Clip | None = None
    """Largest decrease of an own token's pi/b that is not clipped, as in `grpo`; unset: no bound."""
    clip_high: Clip | None = None
    """Largest increase of an own token's pi/b that is not clipped, as in `grpo`; unset: no bound."""
    token_average: TokenAverage = "sum"

    needs_behavior: ClassVar[bool] = False
    trains_on: ClassVar[str] = "group of two rows or more"

    def kept(self, reward_S: "Tensor", group_S: "Tensor", seed: int) -> "Tensor":
        """Keep rows that have others in their group, [S] of bool: alone, a row has no advantage."""
        _, label_S, size_G = group_S.unique(return_inverse=True, return_counts=True)
        kept_S: Tensor = size_G[label_S] > 1
        return kept_S

    def loss(self, inputs: Inputs) -> Loss:
        """Compute -(1/N) sum A rho M over own tokens, and -(1/N) sum A f(pi) over those of demonstrations."""
        advantage_S1 = inputs.advantage_S[:, None]
        own_S = inputs.mask_ST.any(1) if inputs.recorded_S is None else inputs.recorded_S
        own_ST, shown_ST = (inputs.mask_ST & of_S[:, None] for of_S in (own_S, ~own_S))
        low, high = (math.inf if bound is None else bound for bound in (self.clip_low, self.clip_high))
        kept_ST = one_side(inputs.held, advantage_S1, low, high)
        value = weighted_ratios(advantage_S1 * (kept_ST & own_ST), inputs.log_ratio, inputs, self.token_average)
        # where the trainer scored rows anew, its own log-probs stand in the place of b = 1
        known_ST = 0.0 if inputs.behavior_ST is None else inputs.behavior_ST.double()
        logprob_ST = (inputs.log_ratio + known_ST).where(shown_ST, 0.0)
        # x / (x + gamma) = sigmoid(ln x - ln gamma), which no log-prob makes overflow
        shaped_ST = (logprob_ST - math.log(self.shaping)).sigmoid() * shown_ST
        value = value - (advantage_S1 * share(inputs, self.token_average) * shaped_ST).sum()
        return Loss(value, clipped_ST=clipped(kept_ST, inputs) & own_ST)
