"""Fast steps, back, a slow step, for any objective (`objective.slow_fast`; SFPO, arXiv 2510.04072).

    theta_k+1 = theta_k - Adam(grad L(theta_k)),   k = 0 .. K - 1         fast: K updates on one step's answers
    theta'    = theta_0 + alpha (theta_K - theta_0)                       back
    theta     = theta' - Adam(grad L(theta'))                             slow: one more on the same answers

All K + 1 updates have the step's learning rate and share the optimiser's moments. Once entropy leaves its usual range
fast steps end, for the rest of the round:

    z = (H_n - mean H) / (std H + 1e-9) >= stop_at,      H: entropies of the last `window` slow steps, H_n the newest

The authors' code (Urheen/SFPO: fsdp_workers.py, ray_trainer.py, scripts) was read, of the paper the abstract and
summaries. The code has this one-sided test. Its fast steps take a whole batch of 256 prompts, in mini-batches. Here
they take the answers of one optimiser step: offline the groups file is all that there is. Entropies are of stored
answers, not of fresh ones.
"""

from functools import cache
from typing import Annotated, ClassVar

from pydantic import Field, PositiveInt

from oapl_core.objectives.method import Method
from oapl_core.settings_group import Settings


class SlowFast(Settings):
    """Updates within a step, and when they end."""

    fast_steps: PositiveInt = 3
    """K, updates before the weights go back (authors' scripts). A step takes K + 1 times as long."""
    alpha: Annotated[float, Field(gt=0.0, le=1.0)] = 0.8
    """Share of the fast steps' way that is kept (authors' scripts; for Qwen3-4B 0.9)."""
    stop_at: float | None = 1.0
    """z of the entropy from which on there are no fast steps (authors' scripts); unset: there always are."""
    window: Annotated[int, Field(ge=2)] = 30
    """Steps whose entropies are the usual range; before so many none ends the fast steps (authors' scripts)."""


@cache
def repositioned(kind: type[Method]) -> type[Method]:
    """Derive an objective from ``kind`` whose trainer makes fast steps, goes back and makes a slow one."""

    class Repositioned(kind):  # type: ignore[valid-type, misc]
        __doc__ = kind.__doc__
        slow_fast: SlowFast
        """Fast steps on a step's answers, from which the weights go back before the slow step."""

        trainers: ClassVar[tuple[str, ...]] = (*kind.trainers, "slow_fast")
        # the weights from before the fast steps, which no state needs
        bytes_beside: ClassVar[tuple[int, int]] = (kind.bytes_beside[0] + 4, kind.bytes_beside[1])

    Repositioned.__name__ = Repositioned.__qualname__ = kind.__name__
    return Repositioned
