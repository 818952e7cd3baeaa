"""GSPO, group sequence policy optimisation (arXiv 2507.18071, eq. 5-7).

    maximise (1/N) sum_i min( q_i A_i, clip(q_i, 1 - low, 1 + high) A_i ),     q_i = exp(s_i / T_i)

with A = (r - mean r) / std r. The same as REC-GSPO with importance sampling, but for the standard deviation.
"""

from typing import ClassVar, Literal

from oapl_core.objectives.clipped.masks import Clip
from oapl_core.objectives.clipped.rec import sequence_ratio_loss
from oapl_core.objectives.inputs import Inputs, Loss
from oapl_core.objectives.method import Method


class Gspo(Method):
    """One clipped ratio for a sequence."""

    name: Literal["gspo"] = "gspo"
    clip_low: Clip = 3e-4
    """Distance below 1 of the lower bound of q, for worse answers (paper, section 5.1)."""
    clip_high: Clip = 4e-4
    """Distance above 1 of the upper bound of q, for better answers (paper, section 5.1)."""

    standardises: ClassVar[bool] = True

    def loss(self, inputs: Inputs) -> Loss:
        """Compute the loss whose mask gives the gradient of the min above; clipped sequences count as 0."""
        return sequence_ratio_loss(inputs, self.clip_low, self.clip_high, importance_sampling=True)
