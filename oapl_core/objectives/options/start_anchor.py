"""Anchor to the round's first weights, for any objective (`objective.start_anchor`; ReMix, arXiv 2507.06892).

    L + weight (1/tokens) sum_i sum_t k(d_it),     d = ln pi_start(y_it) - ln pi(y_it)
    k3:  exp(d) - 1 - d          k2:  d^2 / 2

k3 is GRPO's estimate of KL(pi, pi_start), with answers of b in the place of the policy's. It differs from an anchor to
b where the rollouts lag: b is then older than the weights that the round starts from. ReMix constrains the policy to a
convex combination of the base model and the model before. The second is here; the first would be one more model to
score. Of the paper the abstract was read. No mask silences the anchor.
"""

from dataclasses import replace
from functools import cache
from typing import ClassVar, Literal

from pydantic import PositiveFloat

from oapl_core.errors import ConfigError
from oapl_core.objectives.inputs import Inputs, Loss
from oapl_core.objectives.method import Method
from oapl_core.objectives.tokens import TokenAverage, share
from oapl_core.settings_group import Settings


class StartAnchor(Settings):
    """Divergence from the round's first weights, added to the loss."""

    weight: PositiveFloat = 0.01
    """Weight of the divergence beside the objective's loss."""
    estimate: Literal["k3", "k2"] = "k3"
    """Estimate of the divergence at a token: GRPO's, or half of the squared log-ratio."""
    token_average: TokenAverage = "batch"


@cache
def anchored(kind: type[Method]) -> type[Method]:
    """Derive an objective from ``kind`` whose loss has the divergence from the round's first weights.

    Raises:
        ConfigError: it has other earlier weights in their place.
    """
    if kind.refresh_steps is not Method.refresh_steps or kind.trainers:
        name = kind.model_fields["name"].default
        raise ConfigError(
            f"`objective.start_anchor`: {name} renews pi_old within the round, and the trainer keeps one: leave it out"
        )

    class Anchored(kind):  # type: ignore[valid-type, misc]
        __doc__ = kind.__doc__
        start_anchor: StartAnchor
        """Divergence from the round's first weights, which the trainer scores once a round."""

        needs_behavior: ClassVar[bool] = True
        needs_start: ClassVar[bool] = True

        def loss(self, inputs: Inputs) -> Loss:
            """Compute the objective's loss and the weighted divergence."""
            assert inputs.old_log_ratio_ST is not None, "the anchor needs the log-probs of the round's first weights"
            found: Loss = super().loss(inputs)
            d_ST = (inputs.old_log_ratio_ST.double() - inputs.log_ratio).where(inputs.mask_ST, 0.0)
            k_ST = d_ST.expm1() - d_ST if self.start_anchor.estimate == "k3" else d_ST.square() / 2
            divergence = (share(inputs, self.start_anchor.token_average) * k_ST).sum()
            return replace(found, value=found.value + self.start_anchor.weight * divergence)

    Anchored.__name__ = Anchored.__qualname__ = kind.__name__
    return Anchored
