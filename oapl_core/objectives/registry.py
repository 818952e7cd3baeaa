"""Which class trains ``config.objective``. A new objective is one settings class in config.py and one file here."""

from typing import TYPE_CHECKING, Protocol

from oapl_core.config import Oapl
from oapl_core.config import Objective as ObjectiveSettings
from oapl_core.objectives.oapl import OaplObjective

if TYPE_CHECKING:
    from torch import Tensor


class Objective(Protocol):
    """What the trainer needs to know of a method; everything else in the trainer is the same for all of them."""

    def advantages(self, reward_S: "Tensor", group_S: "Tensor") -> "Tensor":
        """One weight per sequence (float64), from whole groups; called once, before groups are split into batches."""

    def loss(self, log_ratio_ST: "Tensor", advantage_S: "Tensor", global_sequences: int) -> "Tensor":
        """The given sequences' share of the optimiser step's loss, a scalar.

        Args:
            log_ratio_ST: ln pi - ln b of each response token, [S, T], exactly 0 behind a response's end.
            advantage_S: what ``advantages`` said about these sequences.
            global_sequences: sequences of the whole optimiser step, over all micro-batches and ranks.
        """

    def residuals(self, log_ratio_ST: "Tensor", advantage_S: "Tensor") -> "Tensor":
        """How far each sequence is from what the method aims at, [S]; reported, not trained on."""


_MADE_BY = {Oapl: OaplObjective}


def make_objective(settings: ObjectiveSettings) -> Objective:
    """The objective that ``settings`` describes.

    Raises:
        ValueError: no class is registered for these settings.
    """
    try:
        return _MADE_BY[type(settings)](settings)
    except KeyError:
        raise ValueError(f"no objective is registered for {type(settings).__name__}; add it to {__name__}") from None
