"""BAPO, balanced policy optimisation with adaptive clipping (arXiv 2510.18927, algorithm 1).

    g = (1/tokens) sum_i sum_t M_it rho_it A_i grad ln pi(y_it),     A = (r - mean r) / std r
    M = 1(A > 0, rho <= c_high) + 1(A < 0, rho >= c_low)

For each step the bounds start at their tightest. As long as good answers carry less than ``positive_share`` of the
surrogate sum |min(rho A, clip(rho, c_low, c_high) A)|, first c_high rises, then c_low. The surrogate is a sum over the
whole step. Therefore its tokens are scored once without gradient and their log-ratios joined over the ranks. Under this
measure, the published one, a higher c_low never raises the share: it only silences more tokens of bad answers.

The authors' code (WooooDyy/BAPO 7287044, recipe/bapo/policy_loss.py) raises c_low first and then c_high
(``first = "low"``). It silences tokens of bad answers whose ratio is above 3 (``largest_ratio``, dual clip). Its target
is good over bad: t there is ``positive_share`` t / (1 + t), and the 0.5 of its script is 1/3.
"""

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import PositiveFloat

from oapl_core.objectives.clipped.masks import clipped_loss, one_side
from oapl_core.objectives.inputs import Inputs, Loss
from oapl_core.objectives.method import Method, Scope
from oapl_core.objectives.tokens import TokenAverage
from oapl_core.settings_group import Fraction

if TYPE_CHECKING:
    from torch import Tensor


class Bapo(Method):
    """GRPO whose clip adapts to the balance of good and bad answers."""

    name: Literal["bapo"] = "bapo"
    positive_share: Fraction = 0.5
    """rho_0, the share of the surrogate that good answers should carry (the paper's runs: 0.4)."""
    low_from: PositiveFloat = 0.6
    """Where c_low starts (paper, a-)."""
    low_to: PositiveFloat = 0.9
    """Largest c_low (paper, b-)."""
    high_from: PositiveFloat = 1.2
    """Where c_high starts (paper, a+)."""
    high_to: PositiveFloat = 3.0
    """Largest c_high (paper, b+)."""
    high_step: PositiveFloat = 0.05
    """Step by which c_high rises (paper, delta 1)."""
    low_step: PositiveFloat = 0.02
    """Step by which c_low rises (paper, delta 2)."""
    first: Literal["high", "low"] = "high"
    """Bound that is widened first: c_high (paper) or c_low (authors' code)."""
    largest_ratio: PositiveFloat | None = None
    """Ratio above which tokens of bad answers are silenced (authors' code: 3); unset: none."""
    token_average: TokenAverage = "batch"

    scope: ClassVar[Scope] = "batch"
    standardises: ClassVar[bool] = True

    def statistics(self, step: Inputs) -> "Tensor":
        """Compute c_low and c_high, the same for every sequence, [S, 2]."""
        bounds = self.bounds(step.held.exp(), step.advantage_S[:, None] * step.mask_ST)
        return step.advantage_S.new_tensor(bounds).expand(len(step.advantage_S), 2)

    def bounds(self, ratio_ST: "Tensor", advantage_ST: "Tensor") -> tuple[float, float]:
        """Search c_low and c_high for a step; ``advantage_ST`` is 0 outside the responses."""
        good, bad = advantage_ST > 0, advantage_ST < 0
        good_ratio_T, good_T = ratio_ST[good], advantage_ST[good]
        bad_ratio_T, bad_T = ratio_ST[bad], -advantage_ST[bad]
        # the bounds tried are counted, not added up: rounding must not lose or add one
        highs = 1 + int((self.high_to - self.high_from) / self.high_step + 1e-9)
        lows = 1 + int((self.low_to - self.low_from) / self.low_step + 1e-9)
        low, high = self.low_from, self.high_from
        # first c_high alone, from its tightest; then c_low with c_high at its largest (algorithm 1), or the reverse
        if self.first == "high":
            steps = [(0, i) for i in range(highs)] + [(i, max(highs, 1) - 1) for i in range(1, lows)]
        else:
            steps = [(i, 0) for i in range(lows)] + [(max(lows, 1) - 1, i) for i in range(1, highs)]
        for i_low, i_high in steps:
            low, high = self.low_from + i_low * self.low_step, self.high_from + i_high * self.high_step
            # |min(rho A, clip(rho) A)| is A min(rho, high) for good answers and |A| max(rho, low) for bad ones
            positive = (good_T * good_ratio_T.clamp(max=high)).sum()
            negative = (bad_T * bad_ratio_T.clamp(min=low)).sum()
            if bool(positive >= self.positive_share * (positive + negative)):
                break
        return low, high

    def loss(self, inputs: Inputs) -> Loss:
        """Compute -(1/tokens) sum M rho A."""
        assert inputs.statistics_SK is not None, f"{self.name} needs the tokens of the whole step"
        low, high = inputs.statistics_SK[0].tolist()
        kept_ST = one_side(inputs.held, inputs.advantage_S[:, None], 1.0 - low, high - 1.0)
        if self.largest_ratio is not None:
            kept_ST &= (inputs.advantage_S[:, None] > 0) | (inputs.held.exp() <= self.largest_ratio)
        return clipped_loss(kept_ST, inputs, self.token_average)
