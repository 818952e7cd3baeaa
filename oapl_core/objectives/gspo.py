"""GSPO, group sequence policy optimisation (arXiv 2507.18071, eq. 5-7).

    maximise (1/N) sum_i min( q_i A_i, clip(q_i, 1 - low, 1 + high) A_i ),     q_i = exp(s_i / T_i)

with A = (r - mean r) / std r.

The same as REC-GSPO with importance sampling, but for the standard deviation.
"""

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from oapl_core.objectives.group_means import standardised
from oapl_core.objectives.inputs import Inputs, Loss
from oapl_core.objectives.method import Method
from oapl_core.objectives.rec import sequence_ratio_loss

if TYPE_CHECKING:
    from torch import Tensor


class Gspo(Method):
    """One clipped ratio for a sequence."""

    name: Literal["gspo"] = "gspo"
    """Names the folder of the checkpoints it makes."""
    clip_low: Annotated[float, Field(ge=0.0)] = 3e-4
    """1 - clip_low bounds q of worse answers (paper, section 5.1)."""
    clip_high: Annotated[float, Field(ge=0.0)] = 4e-4
    """1 + clip_high bounds q of better answers (paper, section 5.1)."""

    def advantages(self, reward_S: "Tensor", group_S: "Tensor") -> "Tensor":
        """(r - mean) / standard deviation of the group; 0 where all are equal."""
        return standardised(reward_S, group_S)

    def loss(self, inputs: Inputs) -> Loss:
        """The mask gives the gradient of the min above; clipped sequences count as 0."""
        return sequence_ratio_loss(inputs, self.clip_low, self.clip_high, importance_sampling=True)
