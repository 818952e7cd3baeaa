"""The trainer's engine in a dozen lines of plain torch, one rank: what DeepSpeed is compared with."""

import torch
from torch import Tensor

from oapl_core.settings.training import TrainingConfig
from oapl_core.training.engine import TrainingEngine
from oapl_core.training.model.logprobs import Policy


class PlainEngine(TrainingEngine):
    updates = 0

    def __init__(self, policy: Policy, training: TrainingConfig) -> None:
        self.policy, self.training = policy, training
        self.rank, self.ranks, self.device = 0, 1, next(policy.parameters()).device
        policy.device = self.device
        self.gradients: list[dict[str, Tensor]] = []
        self.optimizer = torch.optim.AdamW(
            policy.parameters(), betas=training.adam_betas, eps=training.adam_eps, weight_decay=training.weight_decay
        )

    def __call__(self, *inputs: Tensor | None, last: bool) -> Tensor:
        output: Tensor = self.policy(*inputs)
        return output

    def backward(self, loss: Tensor) -> None:
        loss.backward()

    def step(self, learning_rate: float) -> float:
        parameters = dict(self.policy.named_parameters())
        self.gradients.append({name: p.grad.clone() for name, p in parameters.items() if p.grad is not None})
        norm = torch.nn.utils.clip_grad_norm_(parameters.values(), self.training.max_grad_norm)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        self.optimizer.step()
        self.updates += 1
        self.optimizer.zero_grad()
        return float(norm)

    def total(self, values: Tensor) -> Tensor:
        return values

    def total_of_parts(self, values: Tensor) -> Tensor:
        return values

    def largest(self, values: Tensor) -> Tensor:
        return values

    def wait(self) -> None:
        """There is one rank."""

    def weights(self) -> dict[str, Tensor]:
        return dict(self.policy.state_dict())
