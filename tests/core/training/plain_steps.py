"""A round in plain torch and transformers, row by row, without anything of the trainer but its batches and rates.

What the ways of `oapl_core/training/updates` are compared with.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from oapl_core.run_folder.run import Run
from oapl_core.training.layouts.batching import epoch_batches
from oapl_core.training.schedule import learning_rate

Row = dict[str, Any]


def log_probs(model: Any, rows: Sequence[Row]) -> list[Tensor]:
    """log_softmax of each whole row by itself, at its response."""
    found = []
    for row in rows:
        ids = torch.tensor([row["prompt_ids"] + row["response_ids"]])
        all_T = model(ids).logits[0, :-1].double().log_softmax(1).gather(1, ids[0, 1:, None])[:, 0]
        found.append(all_T[len(row["prompt_ids"]) - 1 :])
    return found


def grpo_advantages(rows: Sequence[Row]) -> list[float]:
    """(r - mean) / standard deviation within each group; 0 where all are alike."""
    found = []
    for row in rows:
        rewards = np.array([other["reward"] for other in rows if other["group"] == row["group"]])
        found.append(float((row["reward"] - rewards.mean()) / rewards.std()) if rewards.std() else 0.0)
    return found


@dataclass
class PlainRound:
    """The model, torch's AdamW and every weight that was; a subclass or caller makes the steps."""

    run: Run
    rows: list[Row]
    epochs: int
    history: list[dict[str, Tensor]] = field(default_factory=list)
    """Weights of the start and after each update."""

    def __post_init__(self) -> None:
        training = self.run.config.training
        self.model: Any = AutoModelForCausalLM.from_pretrained(self.run.policy(0))
        self.advantages = grpo_advantages(self.rows)
        self.adam = torch.optim.AdamW(
            self.model.parameters(),
            betas=training.adam_betas,
            eps=training.adam_eps,
            weight_decay=training.weight_decay,
        )
        self.history.append(copy.deepcopy(self.model.state_dict()))

    def steps(self, step: Callable[[list[int], float], None]) -> dict[str, Tensor]:
        """Make each step of each epoch: ``step`` gets the rows' numbers and the learning rate."""
        training, seed = self.run.config.training, self.run.config.seed
        epochs = [
            epoch_batches(range(len(self.rows)), None, training.batch_size, seed, 0, e + 1) for e in range(self.epochs)
        ]
        batches = [batch for epoch in epochs for batch in epoch]
        for number, batch in enumerate(batches):
            step(batch, learning_rate(number, len(batches), training))
        return dict(self.model.state_dict())

    def update(self, loss: Tensor, rate: float) -> None:
        """One step of the optimiser."""
        self.adam.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.run.config.training.max_grad_norm)
        for group in self.adam.param_groups:
            group["lr"] = rate
        self.adam.step()
        self.history.append(copy.deepcopy(self.model.state_dict()))
