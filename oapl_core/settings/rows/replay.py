"""Replay: groups of earlier rounds beside a round's own."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from pydantic import PositiveInt

from oapl_core.settings_group import Settings, Share
from oapl_core.token_columns import COLUMNS

if TYPE_CHECKING:
    from oapl_core.settings.experiment import Experiment


class ReplayConfig(Settings):
    """Groups of earlier rounds that are trained on again, with the log-probs of the policies that sampled them."""

    rounds: PositiveInt = 1
    """Number of rounds before this one that groups come from. Rounds."""
    share: Share = 0.3
    """How many of the rollouts that are trained on come from there, where there are as many. Whole groups, drawn at
    random."""

    def check(self, key: str, own: "Experiment", earlier: "Iterable[Experiment]") -> None:
        """Refuse a round that cannot train on groups of ``earlier`` ones; ``key`` is that of these settings.

        Raises:
            ValueError: its log-probs are the trainer's own, or other rounds sampled otherwise; says why.
        """
        if own.training.reference != "behavior":
            raise ValueError(
                f"{key} needs training.reference = 'behavior': only the policy that sampled a "
                "rollout can give its log-probs, and they are recorded"
            )
        for one in earlier:
            for name in ("temperature", *COLUMNS):
                then, now = getattr(one.sampling, name), getattr(own.sampling, name)
                if then != now:
                    raise ValueError(
                        f"{key}: sampling.{name} is {now} in this round and {then} in one that it replays, and a round "
                        "trains on rollouts that were sampled alike; replay fewer rounds"
                    )
