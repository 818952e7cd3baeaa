"""Learning rates by effective sample size, for any objective (`objective.effective_rate`; VCPO, arXiv 2602.17616).

    rate = scheduled rate times min( 1, ESS / reference )^power,     ESS = (sum w)^2 / (N sum w^2),     w = pi(y)/b(y)

Where a few answers outweigh the others the gradient's variance grows, and the step shrinks with it. ESS is that of the
whole optimiser step before its update, of ratios without a bound. It is known after the step's own passes. The paper's
equation 5 is said to have the square root of ESS over that of on-policy steps. Of the paper the abstract and a summary
were read. The authors' code (mit-han-lab/vcpo, megatron_actor.py) has both powers: 0.5 (`sqrt`) and 1 (`linear`). Their
scripts take `sqrt`, reference 1 and ratios without a bound, the defaults here; one script, of several turns, has
reference 0.55. Their second part, a baseline of least variance, is not here.
"""

from functools import cache
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field, PositiveFloat

from oapl_core.objectives.method import Method
from oapl_core.settings_group import Settings

if TYPE_CHECKING:
    from collections.abc import Callable


class EffectiveRate(Settings):
    """Learning rates that fall with the effective sample size of the step."""

    power: PositiveFloat = 0.5
    """Power of ESS: 0.5 (paper, authors' scripts), or 1 (`linear` in the authors' code)."""
    reference: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """Effective sample size, as a share of the step, from which on the rate is the scheduled one (authors' code)."""


@cache
def slowed(kind: type[Method]) -> type[Method]:
    """Derive an objective from ``kind`` whose learning rate falls with the effective sample size."""

    class Slowed(kind):  # type: ignore[valid-type, misc]
        __doc__ = kind.__doc__
        effective_rate: EffectiveRate
        """Learning rates by the effective sample size of each step."""

        needs_behavior: ClassVar[bool] = True

        def rate_factor(self, sample_size: "Callable[[], float]") -> float:
            """Compute min(1, ESS / reference)^power, times what the objective itself says."""
            own: float = super().rate_factor(sample_size)
            share = min(1.0, sample_size() / self.effective_rate.reference)
            return own * float(share**self.effective_rate.power)

    Slowed.__name__ = Slowed.__qualname__ = kind.__name__
    return Slowed
