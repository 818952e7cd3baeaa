"""Supervised fine-tuning: token cross-entropy on every row (`sft`), and on the correct answers alone (`rft`).

    L = -(1/tokens) sum_i sum_t ln pi(y_it)          rft: over the correct answers (r_i >= 1, or `[reward] right_from`)

The mean is over the step's trained tokens, all micro-batches and ranks together. transformers and TRL's SFTTrainer
compute the same (the sum of the tokens' losses over `num_items_in_batch`). RAFT (arXiv 2304.06767) and RFT (arXiv
2308.01825) average over each micro-batch instead. Both papers sample with the policy and keep what is correct. RAFT
keeps the best of K for each prompt; RFT the correct answers with distinct equations, joined with the training set. The
form taken keeps every correct answer of the round, and nothing else.

The value is taken against b, which is a constant. Where b is not known, as for demonstrations, the value is the
cross-entropy. A step's `token_entropy` is always the cross-entropy itself.
"""

from typing import TYPE_CHECKING, ClassVar, Literal

from oapl_core.objectives.inputs import Inputs, Loss
from oapl_core.objectives.method import Method
from oapl_core.objectives.tokens import TokenAverage, weighted_logprobs
from oapl_core.tables import CORRECT

if TYPE_CHECKING:
    from torch import Tensor


class Supervised(Method):
    """Base of both supervised objectives; they differ in ``kept``."""

    needs_behavior: ClassVar[bool] = False
    token_average: TokenAverage = "batch"

    def advantages(self, reward_S: "Tensor", group_S: "Tensor") -> "Tensor":
        """Return 1 for rollouts that are trained on, else 0, [S]."""
        return self.kept(reward_S, group_S, 0).double()

    def loss(self, inputs: Inputs) -> Loss:
        """Compute -(1/tokens) sum ln(pi/b) over the trained tokens."""
        return Loss(weighted_logprobs(inputs.advantage_S[:, None], inputs, self.token_average))


class Sft(Supervised):
    """Supervised fine-tuning: every row is raised, whatever its reward."""

    name: Literal["sft"] = "sft"


class Rft(Supervised):
    """The correct answers are raised, the others cost nothing."""

    name: Literal["rft"] = "rft"
    trains_on: ClassVar[str] = "correct answer"
    of_correct: ClassVar[bool] = True

    def kept(self, reward_S: "Tensor", group_S: "Tensor", seed: int) -> "Tensor":
        """Keep the correct rollouts, [S] of bool: an optimiser step has `batch_size` of them."""
        return reward_S >= CORRECT
