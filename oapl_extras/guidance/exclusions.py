"""Settings that rows with the words of others do not go with, for both sources of such rows."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from oapl_core.settings.experiment import Experiment


def refuse(key: str, own: "Experiment", more: Mapping[str, bool]) -> None:
    """Refuse what excludes the rows that ``key`` names: of ``more``, by what is told, and of what holds for both.

    Raises:
        ValueError: names the setting.
    """
    told = {
        "[environment]": own.environment is not None,
        "fleet.rollouts.through = 'mirror'": own.fleet.through_mirror,
        **{f"sampling.{name} = true": True for name in own.sampling.columns},
        # it would take what others said for what the policy can do
        "draw = 'difficulty'": any(one.draw == "difficulty" for one in own.rounds),
        **more,
    }
    if given := next((name for name, holds in told.items() if holds), None):
        raise ValueError(f"{key} and {given} exclude each other: leave one of them out")
