"""OAPL's two temperatures in words: what they mean at an experiment's length of answers and scale of rewards. Pure."""

import math

from oapl_core.settings.experiment import Experiment
from oapl_core.settings.reward import RewardConfig

_UNIT = ("verdict", "tests", "f1", "format")
_BELOW_ZERO = ("overlong", "repetition")
_WIDE = 2.0
"""Range of rewards, in units of beta1, from which on V is hardly less than the best reward."""


def temperatures(experiment: Experiment) -> list[tuple[str, str]]:
    """Say how far an advantage moves an answer and where V lies; nothing of an objective without both temperatures."""
    objective, tokens = experiment.objective, min(experiment.estimate.answer_tokens, experiment.sampling.max_tokens)
    beta1, beta2 = (getattr(objective, f"{name}_temperature", None) for name in ("value", "regression"))
    if beta1 is None or beta2 is None:
        return []
    width = 1.0 if experiment.reward is None else _width(experiment.reward)
    line = (
        f"beta2 {beta2:g}: an advantage of 1 moves an answer by {1 / beta2:,.4g} nats, {1 / beta2 / tokens:.2g} for "
        f"each of {tokens:,.0f} tokens (paper: 0.1)"
    )
    if width is None:
        return [("objective", f"{line}; beta1 {beta1:g}, in units of the reward, whose range only its function knows")]
    found = [("objective", f"{line}; beta1 {beta1:g}: V of a group that is half right is {_half(beta1, width):.2f}")]
    if width > _WIDE * beta1:
        found.append(
            (
                "warning",
                f"rewards range over {width:g}, and beta1 and beta2 are in units of the reward: V is nearly the best "
                f"reward of a group; divide [reward] parts by {width:g}, or multiply both temperatures by it",
            )
        )
    return found


def _width(reward: RewardConfig) -> float | None:
    """Return how far apart two rewards can be; None where a function, a length or an environment decides."""
    weights = reward.weights
    if not weights:
        return 1.0
    judge = (1 - reward.judge.lowest / reward.judge.scale) if reward.judge else 0.0
    known = dict.fromkeys((*_UNIT, *_BELOW_ZERO), 1.0) | {"judge": judge}
    if any(name not in known for name in weights):
        return None
    return sum(abs(weight) * known[name] for name, weight in weights.items())


def _half(beta1: float, width: float) -> float:
    """Return V of a group of which half earns 0 and half ``width``: beta1 ln((1 + exp(width / beta1)) / 2)."""
    return width + beta1 * (math.log1p(math.exp(-width / beta1)) - math.log(2))
