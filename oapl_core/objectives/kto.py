"""KTO, Kahneman-Tversky optimisation (arXiv 2402.01306, eq. 8): each answer by itself, against a reference point.

    L = (1/N) sum_i lambda_i ( 1 - sigmoid( +- beta (s_i - z0) ) ),     + for a correct answer, - for another one
    z0 = max( 0, estimate of KL(pi, b) ), without a gradient

As in the authors' code (ContextualAI/HALOs, train/trainers.py, `KTOTrainer.loss`), b in the reference's place.

Form taken: the paper has no samples of the policy and estimates z0 from answers to other prompts. That needs b's
log-probs of answers that b did not give, which no groups file has, and a further pass. Here b gave the answers to the
same prompts. Therefore z0 is the importance-weighted mean of the whole step's s, sum w s / sum w with w = exp(s). It
converges to the KL itself, and is never above the step's largest s.
"""

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import NonNegativeFloat, PositiveFloat

from oapl_core.objectives.inputs import Inputs, Loss
from oapl_core.objectives.method import Method, Scope
from oapl_core.tables import CORRECT

if TYPE_CHECKING:
    from torch import Tensor


class Kto(Method):
    """Correct answers are to be likelier than the policy's drift makes any, the others less likely."""

    name: Literal["kto"] = "kto"
    beta: PositiveFloat = 0.1
    """How much the policy is held at b (HALOs)."""
    weight_right: NonNegativeFloat = 1.0
    """lambda of correct answers (HALOs)."""
    weight_wrong: NonNegativeFloat = 1.0
    """lambda of the others (HALOs)."""

    scope: ClassVar[Scope] = "batch"
    of_correct: ClassVar[bool] = True

    def advantages(self, reward_S: "Tensor", group_S: "Tensor") -> "Tensor":
        """Compute lambda, negative for an answer that is not correct."""
        right_S = reward_S >= CORRECT
        return right_S.double() * self.weight_right - (~right_S).double() * self.weight_wrong

    def statistics(self, step: Inputs) -> "Tensor":
        """Compute z0, the same for all, [S, 1]."""
        s_S = step.log_ratio_S.detach()
        return (s_S.softmax(0) * s_S).sum().clamp(min=0.0).expand(len(s_S), 1)

    def loss(self, inputs: Inputs) -> Loss:
        """Compute (1/N) sum lambda (1 - sigmoid)."""
        assert inputs.statistics_SK is not None, f"{self.name} needs the step's divergence"
        above_S = inputs.log_ratio_S - inputs.statistics_SK[:, 0]
        # 1 - sigmoid(x) is sigmoid(-x), which loses nothing where it is small
        missed_S = (-self.beta * inputs.advantage_S.sign() * above_S).sigmoid()
        return Loss((inputs.advantage_S.abs() * missed_S).sum() / inputs.sizes.sequences)
