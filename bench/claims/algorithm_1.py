"""Algorithm 1 of the paper (arXiv 2602.19362) in one process, for claims that need hundreds of synchronisations.

Every ``interval`` optimiser steps the sampler gets the weights that the trainer had ``offset`` steps before, samples
what the next ``interval`` steps consume, and the trainer trains on exactly that. The lag of a step's data is then
(step mod interval) + offset, as far as there were so many steps. Engine, verifier, groups file, trainer and objectives
are the pipeline's own; only the processes between them are left out, which would start 400 times.

What makes it fast changes no number beyond rounding: prompts are computed once for their group (``grouped.py``), a
verdict that can be repeated is asked for once, and what a base model answered to a seed's first requests is kept
for the next arm (``machine.py``).
"""

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch

from bench.claims.grouped import GroupedPolicy
from bench.claims.machine import Asked, Machine
from oapl_core.model_files.model_folder import policy_hash
from oapl_core.objectives import Method
from oapl_core.rows import Rows
from oapl_core.seeds import derive_seed
from oapl_core.settings.training import TrainingConfig
from oapl_core.tables import GROUPS, REFERENCES, is_correct, write_table
from oapl_core.training.examples import Examples, read_examples
from oapl_core.training.model.checkpoint import StoredModel, load_model
from oapl_core.training.model.logprobs import Policy
from oapl_core.training.scoring import scored
from oapl_core.training.steps import Trainer
from tests.core.training.plain_engine import PlainEngine

CHUNK = 50
"""Most optimiser steps whose rollouts are sampled at once, so that an interval of 800 needs no more memory than 50."""
SHORT_ANSWERS = 100
"""Tokens up to which computing a group's prompt once in one masked call is faster than padded rows."""


@dataclass(frozen=True)
class Arm:
    """One training run."""

    objective: Method
    interval: int
    """L: optimiser steps that the rollouts of one synchronisation last for, each used once."""
    epochs: int = 1
    """Passes over them; the next synchronisation is `interval` x `epochs` steps later."""
    offset: int = 0
    """Optimiser steps that a synchronisation's weights are old."""
    steps: int = 200
    groups_per_step: int = 8
    group_size: int = 8
    keep: Literal["all", "any_correct", "mixed"] = "any_correct"
    """Which of a step's groups it trains on, as `rounds.keep`; a step of which none is left has all of them."""
    seed: int = 0
    evaluate_every: int = 50
    answers: int = 2
    """To each evaluation problem."""
    answers_last: int = 4
    """The same after the last step."""
    measured_problems: int | None = None
    """Only the first so many of them."""
    measured_on: str = "heldout"
    """Or "validation", where something is chosen by it."""
    training: dict[str, Any] = field(default_factory=dict)
    engine_copy: Callable[[Path], None] | None = None
    """Changes the folder that the engine samples from, not the one that is measured: numbers that differ from the
    trainer's. Groups carry the policy hash of what sampled."""

    def start(self, machine: Machine, folder: Path) -> "Lagged":
        """The arm at its first step; an arm of another kind gives its own."""
        return Lagged(self, machine, folder)

    def settings(self) -> dict[str, Any]:
        """What the arm is, for its results."""
        copy = getattr(self.engine_copy, "__name__", repr(self.engine_copy)) if self.engine_copy else None
        return {**self.__dict__, "objective": self.objective.model_dump(mode="json"), "engine_copy": copy}


@dataclass(frozen=True)
class InOrder(Trainer):
    """The trainer with steps as they were sampled: an arm's first steps do not depend on how many follow."""

    steps: tuple[tuple[int, ...], ...] = ()

    def batches(self, epoch: int) -> list[list[int]]:
        """The steps of an epoch; of a later one in another order."""
        order = list(range(len(self.steps)))
        if epoch > 1:
            torch.manual_seed(derive_seed(self.seed, "order of passes", self.round_number, epoch) % 2**63)
            order = torch.randperm(len(order)).tolist()
        rows = [self.steps[i] for i in order]
        # an objective may leave rollouts out
        found = [[row for row in step if self.kept_S[row]] for step in rows]
        return [step for step in found if step] or [list(step) for step in rows]


class Lagged:
    """The state of one arm."""

    def __init__(self, arm: Arm, machine: Machine, folder: Path) -> None:
        self.arm, self.machine, self.folder = arm, machine, folder
        is_short = machine.max_tokens <= SHORT_ANSWERS
        self.training = TrainingConfig(
            **{
                "batch_size": arm.groups_per_step * arm.group_size,
                "tokens_per_micro_batch": 4096,
                "share_prompts": "on" if is_short else "off",
                "dtype": "float32",
                "warmup_share": 0.0,
                "floor_share": 1.0,
                "peak_tflops": 1.0,
                "learning_rate": 2.5e-4,
                **arm.training,
            }
        )
        self.stored: StoredModel = load_model(machine.base)
        self.stored.model.to("cuda" if torch.cuda.is_available() else "cpu")
        policy = GroupedPolicy(self.stored.model) if is_short else Policy(self.stored.model)
        self.engine = PlainEngine(policy, self.training)
        self.step = self.samples = 0
        self._rollouts = hashlib.sha256()
        """Of every rollout so far: two arms on one file of rollouts end with one hash."""
        self.metrics: list[dict[str, Any]] = []
        self.evaluations: list[dict[str, Any]] = []
        self._snapshots = {0: self._weights()}
        self._order: list[str] = []
        self.cpu_s = dict.fromkeys(("sampling", "training", "sync"), 0.0)
        """CPU seconds of this process, without evaluations."""

    def _weights(self) -> dict[str, torch.Tensor]:
        weights = Policy.model_weights(self.engine.weights())
        # tied weights stay one tensor: stored twice, they would be another architecture than the base's
        copies = {weight.data_ptr(): weight.detach().clone() for weight in weights.values()}
        return {name: copies[weight.data_ptr()] for name, weight in weights.items()}

    def run(self, say: Callable[[str], None]) -> None:
        """Every step, and an evaluation every ``evaluate_every`` and after the last."""
        self.evaluate()
        while self.step < self.arm.steps:
            left = -(-(self.arm.steps - self.step) // self.arm.epochs)
            self._interval(min(self.arm.interval, left))
            last = self.evaluations[-1]
            say(f"step {self.step}/{self.arm.steps} | right {last['right_share']:.3f} at step {last['step']}")

    def keep(self, target: Path) -> None:
        """The weights of now as a model folder, with its tokenizer."""
        self.stored.export(self._weights(), target)

    def _export(self, weights: Mapping[str, torch.Tensor], name: str = "policy") -> Path:
        target = self.folder / name
        self.stored.export(weights, target)
        return target

    def _interval(self, steps: int) -> None:
        """Synchronise, and train on what that policy samples."""
        at = max(0, self.step - self.arm.offset)
        start = time.process_time()
        folder = self._export(self._snapshots[at]) if at or self.arm.engine_copy else self.machine.base
        if self.arm.engine_copy:
            self.arm.engine_copy(folder)
        self.cpu_s["sync"] += time.process_time() - start
        first, lag = self.step, self.step - at
        # passes over the same rollouts need them all at once
        chunk = CHUNK if self.arm.epochs == 1 else steps
        while self.step < first + steps * self.arm.epochs:
            left = first + steps - self.step if self.arm.epochs == 1 else steps
            self._chunk(folder, self._snapshots[at], min(chunk, left), self.step - first + lag)
        for old in [step for step in self._snapshots if step < self.step - self.arm.offset]:
            del self._snapshots[old]

    def _chunk(self, folder: Path, sampled_by: Mapping[str, torch.Tensor], steps: int, lag: int) -> None:
        rows = self.sampled(folder, steps)
        start = time.process_time()
        path = self.folder / "groups.parquet"
        path.unlink(missing_ok=True)
        write_table(path, GROUPS, rows)
        examples = read_examples(path, rows[0]["policy_hash"], folder)
        if self.training.reference == "reference":
            examples = replace(examples, rescored=self._scored(examples, "rescored", sampled_by))
        if self.arm.objective.needs_start:
            examples = replace(examples, start=self._scored(examples, "start", self._weights()))
        batches = tuple(self._kept(rows, range(k, k + self.arm.groups_per_step)) for k in self._first_groups(steps))
        shared = self.engine, self.arm.objective, examples, self.training, self.arm.seed, self.step, self.arm.epochs
        trainer = InOrder(*shared, lag_steps=lag, steps=batches)
        self.engine.gradients.clear()
        pause = 0.0

        def on_step(metrics: dict[str, Any]) -> None:
            nonlocal pause
            self.engine.gradients.clear()
            self.step += 1
            self.metrics.append(metrics | {"step": self.step})
            if self.arm.offset:
                self._snapshots[self.step] = self._weights()
            if self.step % self.arm.evaluate_every == 0 or self.step == self.arm.steps:
                began = time.process_time()
                self.cpu_s["training"] += began - start - pause
                self.evaluate()
                self.cpu_s["training"] -= began - start - pause
                pause += time.process_time() - began

        for epoch in range(1, self.arm.epochs + 1):
            trainer.epoch(epoch, on_step)
        self._snapshots[self.step] = self._weights()
        self.cpu_s["training"] += time.process_time() - start - pause

    def _first_groups(self, steps: int) -> range:
        return range(0, steps * self.arm.groups_per_step, self.arm.groups_per_step)

    def _kept(self, rows: list[dict[str, Any]], groups: range) -> tuple[int, ...]:
        """The rows of a step."""
        members: dict[int, list[int]] = {}
        for number, row in enumerate(rows):
            if row["group"] in groups:
                members.setdefault(row["group"], []).append(number)
        right = {g: sum(rows[i]["correct"] for i in own) for g, own in members.items()}
        # the fewest right answers that a group may have, and the fewest wrong ones
        fewest, missing = {"all": (0, 0), "any_correct": (1, 0), "mixed": (1, 1)}[self.arm.keep]
        kept = [g for g, own in members.items() if fewest <= right[g] <= len(own) - missing] or list(members)
        return tuple(i for g in kept for i in members[g])

    def _scored(self, examples: Examples, name: str, weights: Mapping[str, torch.Tensor]) -> Rows:
        """The log-probs that the trainer gives with these weights, in the order of the examples."""
        found: dict[int, Any] = {}
        rows, now = range(len(examples.lengths)), self._weights()
        self.stored.model.load_state_dict(weights)
        for part in scored(self.engine, examples, rows, self.training.tokens_per_micro_batch):
            for s, row in enumerate(part.rows):
                found[row] = part.logprob_ST[s][part.mask_ST[s]].cpu().numpy()
        self.stored.model.load_state_dict(now)
        path = self.folder / f"{name}.parquet"
        path.unlink(missing_ok=True)
        write_table(path, REFERENCES, [{"rollout_id": str(row), "reference_logprobs": found[row]} for row in rows])
        return Rows(path, REFERENCES, ("reference_logprobs",))

    def sampled(self, folder: Path, steps: int) -> list[dict[str, Any]]:
        """Rows of tables.GROUPS: answers to the next problems."""
        arm, identity = self.arm, policy_hash(folder)
        first = self.samples // arm.group_size
        names = [self._problem(first + g) for g in range(steps * arm.groups_per_step)]
        asked = [
            Asked(name, f"{name}#{first + g}/{s}", derive_seed(arm.seed, "lagged", first + g, s))
            for g, name in enumerate(names)
            for s in range(arm.group_size)
        ]
        answers, cpu_s = self.machine.answers(folder, identity, asked)
        self.cpu_s["sampling"] += cpu_s
        self.samples += len(asked)
        for one, a in zip(asked, answers, strict=True):
            self._rollouts.update(json.dumps([one.key, a.response_ids, a.logprobs, a.reward]).encode())
        return [
            {
                "rollout_id": one.key,
                "problem_id": one.problem,
                "group": number // arm.group_size,
                "policy_hash": identity,
                "prompt_ids": self.machine.train[one.problem],
                "response_ids": answer.response_ids,
                "behavior_logprobs": answer.logprobs,
                "temperature": 1.0,
                "reward": answer.reward,
                "correct": is_correct(answer.reward),
            }
            for number, (one, answer) in enumerate(zip(asked, answers, strict=True))
            if answer.reward is not None  # could not be judged: missing, not wrong
        ]

    def _problem(self, group: int) -> str:
        """Problems in a shuffled order, again and again in another."""
        names = sorted(self.machine.train)
        walk, at = divmod(group, len(names))
        if at == 0 or not self._order:
            torch.manual_seed(derive_seed(self.arm.seed, "walk", walk) % 2**63)
            self._order = [names[i] for i in torch.randperm(len(names)).tolist()]
        return self._order[at]

    def evaluate(self) -> None:
        """Right answers of each problem, with the weights of now."""
        arm = self.arm
        n = arm.answers_last if self.step == arm.steps else arm.answers
        # in a folder of its own: the sampler of the steps to come keeps its weights
        folder = self._export(self._weights(), "measured") if self.step else self.machine.base
        found = self.machine.measured(folder, arm.measured_on, n, arm.seed, arm.measured_problems)
        spent = {f"cpu_{name}_s": round(seconds, 2) for name, seconds in self.cpu_s.items()}
        known = {"rollouts": self.samples, "rollouts_sha256": self._rollouts.hexdigest()[:16]}
        self.evaluations.append({"step": self.step, **known, **spent, **found})
