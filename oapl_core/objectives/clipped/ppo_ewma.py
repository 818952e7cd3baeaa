"""PPO-EWMA (arXiv 2110.00641): the clip is around a moving average of the trainer's weights, not around b.

    g = (1/tokens) sum_i sum_t A_i min(pi/b, bound) M_it grad ln pi(y_it),     A = (r - mean r) / std r
    M = 1(A > 0, pi/pi_old <= 1 + high) + 1(A < 0, pi/pi_old >= 1 - low)

This is the paper's decoupled objective, pi_old/b times PPO's clipped pi/pi_old. b corrects for who sampled, pi_old, the
proximal policy, bounds how fast the policy changes. pi_old has the weights

    theta_old = sum_i decay^(n-i) theta_i / sum_i decay^(n-i),      i = 0 .. n updates of the round

(training/updates/averaged.py). Their mean age tends to decay/(1 - decay) updates. Batches c times as large keep the age
in answers with 1/c of the age in updates. The authors' code (openai/ppo-ewma, ppo.py, ppg.py) and the paper's abstract
and introduction were read. The code has the average's weights and the bound 100 of pi/b, and no default of decay. 0.889
is ours: an age of 8 updates, which one iteration of theirs has. Their advantages come from a value network. Here they
are GRPO's.
"""

import math
from typing import Annotated, ClassVar, Literal

from pydantic import Field, PositiveFloat

from oapl_core.objectives.clipped.masks import Clip, clipped, one_side, weighted_ratios
from oapl_core.objectives.inputs import Inputs, Loss
from oapl_core.objectives.method import Method
from oapl_core.objectives.tokens import TokenAverage


class PpoEwma(Method):
    """Ratios to the behaviour policy, clipped around a moving average of the trainer's weights."""

    name: Literal["ppo_ewma"] = "ppo_ewma"
    decay: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.889
    """Factor by which each update lessens the part of earlier weights (beta_prox); 0: pi_old is pi itself."""
    clip_low: Clip = 0.2
    """Largest decrease of pi/pi_old that is not clipped, as in `grpo`."""
    clip_high: Clip = 0.2
    """Largest increase of pi/pi_old that is not clipped, as in `grpo`."""
    largest_ratio: PositiveFloat = 100.0
    """Bound of pi/b as a weight (authors' code)."""
    token_average: TokenAverage = "batch"

    standardises: ClassVar[bool] = True
    trainers: ClassVar[tuple[str, ...]] = ("average",)
    bytes_beside: ClassVar[tuple[int, int]] = (4, 4)

    def loss(self, inputs: Inputs) -> Loss:
        """Compute -(1/tokens) sum A (pi_old/b) (pi/pi_old) M; before the round's first update pi_old is pi."""
        old_ST = inputs.held if inputs.old_log_ratio_ST is None else inputs.old_log_ratio_ST.double()
        advantage_S1, log_ratio_ST = inputs.advantage_S[:, None], inputs.log_ratio - old_ST
        kept_ST = one_side(log_ratio_ST.detach(), advantage_S1, self.clip_low, self.clip_high)
        # ln b is raised to ln pi - ln bound, so that pi/b is at most the bound
        correction_ST = old_ST - (inputs.held - math.log(self.largest_ratio)).clamp(min=0.0)
        weight_ST = correction_ST.exp() * advantage_S1 * kept_ST
        value = weighted_ratios(weight_ST, log_ratio_ST, inputs, self.token_average)
        return Loss(value, clipped_ST=clipped(kept_ST, inputs))
