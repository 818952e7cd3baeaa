"""Replay: groups of earlier rounds beside a round's own."""

from pydantic import PositiveInt

from oapl_core.settings_group import Settings, Share


class ReplayConfig(Settings):
    """Groups of earlier rounds that are trained on again, with the log-probs of the policies that sampled them."""

    rounds: PositiveInt = 1
    """Number of rounds before this one that groups come from. Rounds."""
    share: Share = 0.3
    """How many of the rollouts that are trained on come from there, where there are as many. Whole groups, drawn at
    random."""

    def check(self, key: str, reference: str) -> None:
        """Refuse a round whose log-probs are the trainer's own; ``key`` is that of these settings.

        Raises:
            ValueError: says why.
        """
        if reference != "behavior":
            raise ValueError(
                f"{key} needs training.reference = 'behavior': only the policy that sampled a "
                "rollout can give its log-probs, and they are recorded"
            )
