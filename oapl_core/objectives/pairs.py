"""DPO and IPO: a correct answer against another one of the same group, by their log-ratios to b.

    DPO (arXiv 2305.18290, eq. 7)      L = mean over pairs of -ln sigmoid( beta d ),     d = s(y+) - s(y-)
    IPO (arXiv 2310.12036, eq. 17)     L = mean over pairs of ( d - 1/(2 beta) )^2,      the paper's tau is beta

Both equations follow the DPO authors' code (eric-mitchell/direct-preference-optimization, `preference_loss`): sums over
tokens. TRL and HALOs divide s by the answer's length for IPO, the paper does not. b is the reference: it sampled both
answers, where the papers start from a model tuned on the chosen ones.

A group's pairs are drawn once a round: as many random correct and other answers as both kinds have, `pairs` of each at
most. No answer is in two pairs, and an answer in none costs nothing. A group of one kind has no pair. s of a pair's
other answer is a constant here: each answer has the whole derivative by its own s and half of the value. A pair may
therefore be split over micro-batches and ranks.
"""

import random
from collections import defaultdict
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import PositiveFloat, PositiveInt

from oapl_core.objectives.group_means import group_sum
from oapl_core.objectives.inputs import Inputs, Loss
from oapl_core.objectives.method import Method, Scope
from oapl_core.seeds import derive_seed
from oapl_core.tables import CORRECT

if TYPE_CHECKING:
    from torch import Tensor


class Paired(Method):
    """Base of both losses of pairs; they differ in ``of_difference``."""

    beta: PositiveFloat = 0.1
    """How much the policy is held at b: for a pair of d nats the loss looks at beta d."""
    pairs: PositiveInt = 4
    """Pairs per group, at most: half of the paper's G is the most that there can be."""

    scope: ClassVar[Scope] = "group"
    of_correct: ClassVar[bool] = True
    is_paired: ClassVar[bool] = True
    trains_on: ClassVar[str] = "group with a correct and another answer"

    def kept(self, reward_S: "Tensor", group_S: "Tensor", seed: int) -> "Tensor":
        """Choose the answers of the pairs, [S] of bool; the draw is seeded for each group."""
        right, other = defaultdict[int, list[int]](list), defaultdict[int, list[int]](list)
        for row, (group, reward) in enumerate(zip(group_S.tolist(), reward_S.tolist(), strict=True)):
            (right if reward >= CORRECT else other)[group].append(row)
        kept_S = reward_S.new_zeros(len(reward_S)).bool()
        for group in right.keys() & other.keys():
            count = min(len(right[group]), len(other[group]), self.pairs)
            draw = random.Random(derive_seed(seed, "pairs", group))
            kept_S[draw.sample(right[group], count) + draw.sample(other[group], count)] = True
        return kept_S

    def advantages(self, reward_S: "Tensor", group_S: "Tensor") -> "Tensor":
        """Number the answers' pairs in their group from 1 on; negative for the worse answer, 0 without a pair, [S].

        A group's first drawn correct answer meets its first drawn other one: all are independent draws of b.
        """
        met, number_S = defaultdict[tuple[int, bool], int](int), reward_S.double().clone()
        for row, (group, reward) in enumerate(zip(group_S.tolist(), reward_S.tolist(), strict=True)):
            met[group, reward >= CORRECT] += 1
            number_S[row] = met[group, reward >= CORRECT]
        size_S = reward_S.new_tensor([min(met[group, True], met[group, False]) for group in group_S.tolist()])
        sign_S = (reward_S >= CORRECT).double() * 2.0 - 1.0
        return (sign_S * number_S).where(number_S <= size_S, 0.0)

    def statistics(self, step: Inputs) -> "Tensor":
        """Compute s of the pair's other answer, [S, 1]."""
        import torch

        s_S = step.log_ratio_S.detach()
        label_S2 = torch.stack([step.group_S, step.advantage_S.abs().to(step.group_S.dtype)], 1)
        _, pair_S = label_S2.unique(dim=0, return_inverse=True)
        return (group_sum(s_S, pair_S) - s_S)[:, None]

    def of_difference(self, d_S: "Tensor") -> "tuple[Tensor, Tensor]":
        """Compute the loss of a pair and its derivative, for d = s(y+) - s(y-)."""
        raise NotImplementedError

    def loss(self, inputs: Inputs) -> Loss:
        """Compute half of each pair's loss, with the derivative by the answer's own s."""
        assert inputs.statistics_SK is not None, f"{self.name} needs the other answer of each pair"
        sign_S, s_S = inputs.advantage_S.sign(), inputs.log_ratio_S
        held_S = s_S.detach()
        value_S, slope_S = self.of_difference(sign_S * (held_S - inputs.statistics_SK[:, 0]))
        share_S = value_S / 2 + slope_S * sign_S * (s_S - held_S)
        # N sequences are N/2 pairs
        return Loss((share_S * sign_S.abs()).sum() * 2 / inputs.sizes.sequences)


class Dpo(Paired):
    """The correct answer is to be the more likely one of its pair, by the log-odds of a Bradley-Terry model."""

    name: Literal["dpo"] = "dpo"

    def of_difference(self, d_S: "Tensor") -> "tuple[Tensor, Tensor]":
        """Return -ln sigmoid(beta d), [S], and d times its derivative by d."""
        from torch.nn.functional import softplus

        return softplus(-self.beta * d_S), -self.beta * (-self.beta * d_S).sigmoid()


class Ipo(Paired):
    """The difference is to be 1/(2 beta) nats, no more."""

    name: Literal["ipo"] = "ipo"

    def of_difference(self, d_S: "Tensor") -> "tuple[Tensor, Tensor]":
        """Compute (d - 1/(2 beta))^2."""
        residual_S = d_S - 1.0 / (2.0 * self.beta)
        return residual_S.square(), 2.0 * residual_S
