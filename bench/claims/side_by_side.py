"""Many arms on one file of rollouts, trained side by side: one forward and one backward pass for all of a step.

Arms of one base see the same sequences in the same order (``algorithm_1.py``), so only their weights differ. Those are
stacked, [A, ...], and one pass of the model is mapped over them. What is an arm's own stays its own: the pipeline's
objective computes its loss from its log-probs, then the norm is clipped and AdamW makes a step at its rate. Each arm's
weights are to rounding those that the pipeline's trainer makes (tests/bench/test_side_by_side.py).

Axes: A arms, S sequences of a step, T their tokens.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, vmap

from bench.claims.grouped import Layout, give, laid_out
from oapl_core.objectives import Inputs, Method, StepSizes
from oapl_core.seeds import derive_seed
from oapl_core.settings.training import TrainingConfig


@dataclass(frozen=True)
class SideArm:
    """One arm: what it minimises, at which rate."""

    name: str
    objective: Method
    rate: float
    max_grad_norm: float = 1.0


@dataclass(frozen=True)
class Rollouts:
    """A file of rollouts in the order in which steps take them, as tables.GROUPS has them."""

    prompts: Sequence[Sequence[int]]
    responses: Sequence[Sequence[int]]
    logprobs: Sequence[Sequence[float]]
    """ln b of each token of a response."""
    reward_S: Tensor
    correct_S: Tensor
    group_S: Tensor

    def steps(self, groups_per_step: int, keep_all: bool = False) -> list[list[int]]:
        """Rows of each step of a pass: groups with a correct answer; a step that has none has all of its groups."""
        found = []
        for first in range(0, int(self.group_S.max()) + 1, groups_per_step):
            rows = ((self.group_S >= first) & (self.group_S < first + groups_per_step)).nonzero()[:, 0]
            correct = set(self.group_S[rows[self.correct_S[rows]]].tolist())
            kept = [row for row in rows.tolist() if keep_all or int(self.group_S[row]) in correct]
            found.append(kept or rows.tolist())
        return found


@dataclass(frozen=True)
class Step:
    """The sequences of one optimiser step, on the host."""

    rows: list[int]
    layout: Layout
    behavior_ST: Tensor
    """ln b, [S, T - 1], 0 outside of responses."""
    mask_ST: Tensor


@dataclass
class SideBySide:
    """Weights and moments of every arm, and how many steps they have made."""

    model: Any
    arms: Sequence[SideArm]
    rollouts: Rollouts
    seed: int = 0
    training: TrainingConfig = field(default_factory=lambda: TrainingConfig(dtype="float32"))
    """Its moments' decay, epsilon and weight decay are taken."""
    updates: int = 0

    def __post_init__(self) -> None:
        # matrix products and a softmax, which can be mapped over arms; a fused kernel can not
        give(self.model)
        own = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        self.weights = {name: p.detach().repeat(len(self.arms), *[1] * p.ndim) for name, p in own.items()}
        self._moments = {name: (torch.zeros_like(p), torch.zeros_like(p)) for name, p in self.weights.items()}
        rates = torch.tensor([arm.rate for arm in self.arms], dtype=torch.float32)
        bounds = torch.tensor([arm.max_grad_norm for arm in self.arms], dtype=torch.float32)
        self._rate_A, self._bound_A = rates.to(self.device), bounds.to(self.device)
        self._facts = [self._facts_of(arm.objective) for arm in self.arms]
        self._old: dict[tuple[int, int], Tensor] = {}
        """By arm and row: ln pi_old - ln b of a response, for objectives whose pi_old is some steps old."""

    @property
    def device(self) -> torch.device:
        device: torch.device = next(self.model.parameters()).device
        return device

    def _facts_of(self, objective: Method) -> tuple[Tensor, Tensor, Tensor]:
        """Rewards as the objective judges them, rows that it keeps, and their advantages, [rows]."""
        rollouts = self.rollouts
        reward_S = objective.judging(rollouts.reward_S, rollouts.correct_S)
        kept_S = objective.kept(reward_S, rollouts.group_S, derive_seed(self.seed, "kept rollouts", 0))
        advantage_S = torch.zeros(len(kept_S), dtype=torch.float64)
        advantage_S[kept_S] = objective.advantages(reward_S[kept_S], rollouts.group_S[kept_S])
        return reward_S, kept_S, advantage_S

    def train(self, steps: Sequence[list[int]], epoch: int = 1, first_step: int = 0, most: int | None = None) -> None:
        """One pass over ``steps``, or its first ``most``; later ones than the first take them in another order, as
        ``InOrder`` does.

        Raises:
            ValueError: a step that the pipeline's trainer would leave out for one arm and make for another.
        """
        for number, rows in enumerate(steps):
            if not bool(self.rollouts.correct_S[rows].any()) or bool(self.rollouts.correct_S[rows].all()):
                raise ValueError(f"step {number} has no correct answer, or no other: train its arms one by one")
        order = list(range(len(steps)))
        if epoch > 1:
            torch.manual_seed(derive_seed(self.seed, "order of passes", first_step, epoch) % 2**63)
            order = torch.randperm(len(order)).tolist()
        made = [self.step_of(steps[number]) for number in order[:most]]
        for number, step in enumerate(made):
            self._renew(made, number)
            self.step(step, number)

    def step_of(self, rows: list[int]) -> Step:
        """Pad the rows of a step."""
        r = self.rollouts
        lengths = [len(r.prompts[i]) + len(r.responses[i]) for i in rows]
        id_ST = torch.zeros(len(rows), max(lengths), dtype=torch.long)
        behavior_ST = torch.zeros(len(rows), max(lengths) - 1)
        mask_ST = torch.zeros_like(behavior_ST, dtype=torch.bool)
        for s, i in enumerate(rows):
            begin, end = len(r.prompts[i]), lengths[s]
            id_ST[s, :end] = torch.tensor([*r.prompts[i], *r.responses[i]])
            behavior_ST[s, begin - 1 : end - 1] = torch.tensor(r.logprobs[i], dtype=torch.float32)
            mask_ST[s, begin - 1 : end - 1] = True
        prompts = torch.tensor([len(r.prompts[i]) for i in rows])
        return Step(rows, laid_out(id_ST, prompts, torch.tensor(lengths), mask_ST), behavior_ST, mask_ST)

    def log_ratios(self, step: Step) -> Tensor:
        """ln pi - ln b of each arm, [A, S, T - 1], on the host; carries the gradient of ``weights``."""
        device = self.device
        at = step.layout.sent(device)
        model, tied = self.model.base_model, self.model.get_output_embeddings().weight
        prefix = self.model.base_model_prefix + "."
        (output,) = (name for name, p in self.model.named_parameters() if p is tied)

        def of_one(weights: Mapping[str, Tensor]) -> Tensor:
            inner = {name.removeprefix(prefix): p for name, p in weights.items() if name.startswith(prefix)}
            states_ND = at.states(lambda **given: functional_call(model, inner, (), given))
            logits_TV = states_ND[at.source_T] @ weights[output].T
            return torch.log_softmax(logits_TV, -1).gather(1, at.target_T[:, None])[:, 0]

        logprob_AT = vmap(of_one)(self.weights)
        whole = logprob_AT.new_zeros(len(self.arms), step.mask_ST.numel())
        places_T = step.mask_ST.flatten().nonzero()[:, 0].to(device)
        logprob_AST = whole.index_copy(1, places_T, logprob_AT).view(len(self.arms), *step.mask_ST.shape)
        return logprob_AST.cpu() - step.behavior_ST

    def _renew(self, made: Sequence[Step], number: int) -> None:
        """Score what shares pi_old with this step, for the arms whose pi_old is made anew here."""
        for refresh in {arm.objective.refresh_steps for arm in self.arms} - {1}:
            if number % refresh:
                continue
            own = [a for a, arm in enumerate(self.arms) if arm.objective.refresh_steps == refresh]
            for later in made[number + 1 : number + refresh]:
                with torch.no_grad():
                    ratio_AST = self.log_ratios(later)
                for a in own:
                    for s, row in enumerate(later.rows):
                        self._old[a, row] = ratio_AST[a, s]

    def step(self, step: Step, number: int) -> list[float]:
        """One optimiser step of every arm; returns their gradients' norms before clipping."""
        for p in self.weights.values():
            p.requires_grad_(True)
        ratio_AST = self.log_ratios(step)
        leaf_AST = ratio_AST.detach().requires_grad_(True)
        total = torch.stack([self._loss(a, leaf_AST[a], step, number) for a in range(len(self.arms))]).sum()
        total.backward()
        names = list(self.weights)
        gradients = torch.autograd.grad(ratio_AST, [self.weights[name] for name in names], leaf_AST.grad)
        for p in self.weights.values():
            p.requires_grad_(False)
        return self._adamw(dict(zip(names, gradients, strict=True)))

    def _loss(self, a: int, ratio_ST: Tensor, step: Step, number: int) -> Tensor:
        objective, (reward_S, kept_S, advantage_S) = self.arms[a].objective, self._facts[a]
        own = [s for s, row in enumerate(step.rows) if kept_S[row]] or list(range(len(step.rows)))
        rows = [step.rows[s] for s in own]
        group_S, mask_ST = self.rollouts.group_S[rows], step.mask_ST[own]
        sizes = StepSizes(len(rows), len(group_S.unique()), int(mask_ST.sum()))
        inputs = Inputs(ratio_ST[own], mask_ST, advantage_S[rows], reward_S[rows], group_S, sizes)
        if number % objective.refresh_steps:
            width = ratio_ST.shape[1]
            inputs = replace(inputs, old_log_ratio_ST=torch.stack([self._old[a, row][:width] for row in rows]))
        return objective.loss_of_step(inputs).value

    @torch.no_grad()
    def _adamw(self, gradients: Mapping[str, Tensor]) -> list[float]:
        """torch's clip_grad_norm_ and AdamW, of each arm by itself."""
        self.updates += 1
        norm_A = sum(g.flatten(1).square().sum(1) for g in gradients.values()).sqrt()  # type: ignore[union-attr]
        share_A = (self._bound_A / (norm_A + 1e-6)).clamp(max=1.0)
        (first, second), epsilon = self.training.adam_betas, self.training.adam_eps
        for name, g in gradients.items():
            shape = (-1, *[1] * (g.ndim - 1))
            p, (mean, square), rate = self.weights[name], self._moments[name], self._rate_A.view(shape)
            g = g * share_A.view(shape)
            p.mul_(1 - rate * self.training.weight_decay)
            mean.lerp_(g, 1 - first)
            square.mul_(second).addcmul_(g, g, value=1 - second)
            scale = square.sqrt().div_((1 - second**self.updates) ** 0.5).add_(epsilon)
            p.sub_(rate / (1 - first**self.updates) * mean / scale)
        norms: list[float] = norm_A.tolist()
        return norms

    def weights_of(self, a: int) -> dict[str, Tensor]:
        """Weights of one arm."""
        return {name: p[a] for name, p in self.weights.items()}
