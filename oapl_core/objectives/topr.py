"""TOPR, tapered off-policy REINFORCE (arXiv 2503.14286, eq. 8 with the canonical tapering).

    g = (1/N) [ sum_{A_i > 0} A_i grad ln pi(y_i) + sum_{A_i < 0} min(pi(y_i)/b(y_i), 1) A_i grad ln pi(y_i) ]

Good answers are learned as in supervised training, bad ones only as long as the policy still gives them. The ratio is
of whole sequences and held constant. The paper has rewards of +1 and -1 and an optional baseline; the form taken here
has A_i = r_i - mean r. `value = "log_mean_exp"` has OAPL's r_i - V (values.py).
"""

from typing import TYPE_CHECKING, Any, Literal

from pydantic import PositiveFloat, SerializerFunctionWrapHandler, model_serializer

from oapl_core.objectives.inputs import Inputs, Loss
from oapl_core.objectives.method import Method
from oapl_core.objectives.tokens import weighted_logprobs
from oapl_core.objectives.values import values

if TYPE_CHECKING:
    from torch import Tensor


class Topr(Method):
    """REINFORCE whose bad answers are weighted by a truncated sequence ratio."""

    name: Literal["topr"] = "topr"
    largest_ratio: PositiveFloat = 1.0
    """Bound of the ratio of bad answers."""
    value: Literal["mean", "log_mean_exp"] = "mean"
    """Baseline of A = r - V: the group's mean reward, or OAPL's V."""
    value_temperature: PositiveFloat = 1.0
    """beta1 of `log_mean_exp`."""

    @model_serializer(mode="wrap")
    def _recorded(self, dumped: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # a checkpoint of TOPR from before it had a V must not become one of other settings
        fields = type(self).model_fields
        return {
            key: value
            for key, value in dumped(self).items()
            if key not in ("value", "value_temperature") or value != fields[key].default
        }

    def advantages(self, reward_S: "Tensor", group_S: "Tensor") -> "Tensor":
        """Compute r - V in float64; needs every valid rollout of each group."""
        return reward_S.double() - values(self.value, reward_S, group_S, self.value_temperature, 0.0)

    def loss(self, inputs: Inputs) -> Loss:
        """Compute -(1/N) sum_i w_i A_i s_i."""
        advantage_S, s_S = inputs.advantage_S, inputs.log_ratio_S.detach()
        # exp(709) is the largest that float64 holds; the bound below cuts it anyway
        ratio_S = s_S.clamp(max=700.0).exp()
        weight_S = (ratio_S.clamp(max=self.largest_ratio)).where(advantage_S < 0, 1.0)
        truncated_S = (advantage_S < 0) & (ratio_S > self.largest_ratio)
        value = weighted_logprobs((weight_S * advantage_S)[:, None], inputs)
        return Loss(value, clipped_ST=truncated_S[:, None] & inputs.mask_ST)
