"""[evaluation] of a run that is measured at its end alone: a short rehearsal's, an arm's of a comparison."""

from typing import Any

from oapl_core.settings.evaluation import OF_ALL_ROUNDS, EvaluationConfig

DURING: dict[str, Any] = {"every_rounds": None, "heldout_problems": None}
"""Keys of evaluations before the end, unset."""


def at_the_end_alone(settings: EvaluationConfig) -> dict[str, Any]:
    """Return the keys in which ``settings`` differ where nothing is measured before the end of the run."""
    return DURING | {"choose_on": "validation" if settings.choose_on == OF_ALL_ROUNDS else settings.choose_on}
