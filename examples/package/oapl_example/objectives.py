"""REINFORCE whose better answers weigh more: ``[objective] name = "tilted"``."""

from typing import TYPE_CHECKING, Literal

from pydantic import PositiveFloat

from oapl_core.objectives import Method

if TYPE_CHECKING:
    from torch import Tensor


class Tilted(Method):
    """Policy gradient with A_i = expm1(strength (r_i - mean r))."""

    name: Literal["tilted"] = "tilted"
    strength: PositiveFloat = 1.0
    """Bend of the advantages; as it goes to 0, they become those of REINFORCE times the strength."""

    def advantages(self, reward_S: "Tensor", group_S: "Tensor") -> "Tensor":
        """Bend the advantages of REINFORCE upwards, [S] in float64."""
        return (self.strength * super().advantages(reward_S, group_S)).expm1()
