"""Algorithm 1 of the paper (arXiv 2602.19362) in one process, for claims that need hundreds of synchronisations.

Every ``interval`` optimiser steps the sampler gets the weights that the trainer had ``offset`` steps before, samples
what the next ``interval`` steps consume, and the trainer trains on exactly that. The lag of a step's data is then
(step mod interval) + offset, as far as there were so many steps. Engine, verifier, groups file, trainer and objectives
are the pipeline's own; only the processes between them are left out, which would start 400 times.
"""

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from oapl_core.evaluation.pass_at_k import pass_at_k
from oapl_core.model_folder import policy_hash
from oapl_core.objectives import Method
from oapl_core.rollouts.requests import Request, SampledAnswer, Sampler
from oapl_core.rows import Rows
from oapl_core.seeds import derive_seed
from oapl_core.settings.training import TrainingConfig
from oapl_core.tables import GROUPS, REFERENCES, write_table
from oapl_core.training.checkpoint import StoredModel, load_model
from oapl_core.training.examples import Examples, read_examples
from oapl_core.training.logprobs import Policy
from oapl_core.training.scoring import scored
from oapl_core.training.steps import Trainer
from oapl_core.verdicts.verifier import Verifier
from tests.core.training.plain_engine import PlainEngine

Row = Mapping[str, Any]
MAX_TOKENS = 48


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
    steps: int = 400
    groups_per_step: int = 8
    group_size: int = 8
    seed: int = 0
    evaluate_every: int = 50
    answers: int = 8
    """To each evaluation problem."""
    measured_on: str = "heldout"
    """Or "validation", where something is chosen by it."""
    training: dict[str, Any] = field(default_factory=dict)


@dataclass
class Machine:
    """What all arms of one process share."""

    sampler: Sampler
    verifier: Verifier
    train: Mapping[str, Sequence[int]]
    measured: Mapping[str, Mapping[str, Sequence[int]]]
    """Prompts by problem, by set: heldout and validation."""
    problems: Mapping[str, Row]
    base: Path

    def answers(
        self, requests: Iterator[Request], with_logprobs: bool
    ) -> tuple[list[SampledAnswer], list[float | None]]:
        """Completions and their rewards, in the order of the requests."""
        asked = list(requests)
        by_key = {answer.request.key: answer for answer in self.sampler.sample(asked, with_logprobs)}
        found = [by_key[request.key] for request in asked]
        problems = [self.problems[answer.request.key.partition("#")[0]] for answer in found]
        verdicts = self.verifier.stream(problems, [a.text for a in found], [a.finish_reason for a in found])
        return found, [verdict.reward for verdict in verdicts]


class Lagged:
    """The state of one arm."""

    def __init__(self, arm: Arm, machine: Machine, folder: Path) -> None:
        self.arm, self.machine, self.folder = arm, machine, folder
        self.training = TrainingConfig(
            batch_size=arm.groups_per_step * arm.group_size,
            tokens_per_micro_batch=4096,
            dtype="float32",
            warmup_share=0.0,
            floor_share=1.0,
            peak_tflops=1.0,
            **({"learning_rate": 5e-4} | arm.training),
        )
        self.stored: StoredModel = load_model(machine.base)
        self.engine = PlainEngine(Policy(self.stored.model), self.training)
        self.step = 0
        self.samples = 0
        self.metrics: list[dict[str, Any]] = []
        self.evaluations: list[dict[str, Any]] = []
        self._snapshots = {0: self._weights()}
        self._order: list[str] = []
        self.seconds = dict.fromkeys(("sampling", "training", "evaluation", "sync"), 0.0)

    def _weights(self) -> dict[str, torch.Tensor]:
        weights = Policy.model_weights(self.engine.weights())
        return {name: weight.detach().clone() for name, weight in weights.items()}

    def run(self, say: Callable[[str], None]) -> None:
        """Every step, and an evaluation every ``evaluate_every``."""
        self.evaluate()
        while self.step < self.arm.steps:
            left = -(-(self.arm.steps - self.step) // self.arm.epochs)
            self._block(min(self.arm.interval, left))
            last = self.evaluations[-1]
            say(f"step {self.step}/{self.arm.steps} | pass@1 {last['pass_at_1']:.3f} at step {last['step']}")

    def keep(self, target: Path) -> None:
        """The weights of now as a model folder, with its tokenizer."""
        self.stored.export(self._weights(), target)

    def _export(self, weights: Mapping[str, torch.Tensor]) -> Path:
        start = time.monotonic()
        target = self.folder / "policy"
        self.stored.export(weights, target)
        self.machine.sampler.load(target)
        self.seconds["sync"] += time.monotonic() - start
        return target

    def _block(self, steps: int) -> None:
        at = max(0, self.step - self.arm.offset)
        folder = self._export(self._snapshots[at])
        lag = self.step - at
        groups = self._sampled(folder, steps)
        start = time.monotonic()
        examples = read_examples(groups, policy_hash(folder), folder)
        if self.arm.objective.needs_start:
            examples = replace(examples, start=self._scored(examples))
        trainer = Trainer(
            self.engine,
            self.arm.objective,
            examples,
            self.training,
            self.arm.seed,
            self.step,
            self.arm.epochs,
            lag_steps=lag,
        )
        self.engine.gradients.clear()
        pause = 0.0

        def on_step(metrics: dict[str, Any]) -> None:
            nonlocal pause
            self.engine.gradients.clear()
            self.metrics.append(metrics | {"step": self.step + 1})
            self.step += 1
            if (self.step + self.arm.offset) % self.arm.interval == 0 or self.arm.offset:
                self._snapshots[self.step] = self._weights()
            if self.step % self.arm.evaluate_every == 0:
                began = time.monotonic()
                self.evaluate()
                pause += time.monotonic() - began

        for epoch in range(1, self.arm.epochs + 1):
            trainer.epoch(epoch, on_step)
        for old in [step for step in self._snapshots if step < self.step - self.arm.offset]:
            del self._snapshots[old]
        self.seconds["training"] += time.monotonic() - start - pause

    def _scored(self, examples: Examples) -> Rows:
        """The log-probs of the trainer's weights of now, in the order of the examples."""
        found: dict[int, Any] = {}
        rows = range(len(examples.lengths))
        for part in scored(self.engine, examples, rows, self.training.tokens_per_micro_batch):
            for s, row in enumerate(part.rows):
                found[row] = part.logprob_ST[s][part.mask_ST[s]].numpy()
        path = self.folder / "start.parquet"
        path.unlink(missing_ok=True)
        write_table(path, REFERENCES, [{"rollout_id": str(row), "reference_logprobs": found[row]} for row in rows])
        return Rows(path, REFERENCES, ("reference_logprobs",))

    def _sampled(self, folder: Path, steps: int) -> Path:
        start = time.monotonic()
        arm, rows = self.arm, []
        identity = policy_hash(folder)
        names = [self._next() for _ in range(steps * arm.groups_per_step)]
        keys = [(g, name, s) for g, name in enumerate(names) for s in range(arm.group_size)]
        answers, rewards = self.machine.answers(
            (
                Request(
                    f"{name}#{g}/{s}",
                    self.machine.train[name],
                    derive_seed(arm.seed, "lagged", self.step, g, s),
                    MAX_TOKENS,
                    1.0,
                    1.0,
                )
                for g, name, s in keys
            ),
            True,
        )
        for (g, name, s), answer, reward in zip(keys, answers, rewards, strict=True):
            if reward is None:  # could not be judged: missing, not wrong
                continue
            row = {
                "rollout_id": f"{name}#{g}/{s}",
                "problem_id": name,
                "group": g,
                "policy_hash": identity,
                "prompt_ids": answer.request.prompt_ids,
                "response_ids": answer.response_ids,
                "behavior_logprobs": answer.logprobs,
                "temperature": 1.0,
                "reward": reward,
            }
            rows.append(row)
        self.samples += len(answers)
        path = self.folder / "groups.parquet"
        path.unlink(missing_ok=True)
        write_table(path, GROUPS, rows)
        self.seconds["sampling"] += time.monotonic() - start
        return path

    def _next(self) -> str:
        """Problems in a shuffled order, again and again."""
        if not self._order:
            self._order = sorted(self.machine.train)
            random.Random(derive_seed(self.arm.seed, "walk", self.samples)).shuffle(self._order)
        return self._order.pop()

    def evaluate(self) -> None:
        """pass@k on held-out problems with the weights of now."""
        start = time.monotonic()
        self._export(self._weights())
        n, measured_on = self.arm.answers, self.arm.measured_on
        answers, rewards = self.machine.answers(
            (
                Request(f"{name}#{s}", ids, derive_seed(self.arm.seed, measured_on, name, s), MAX_TOKENS, 1.0, 1.0)
                for name, ids in self.machine.measured[measured_on].items()
                for s in range(n)
            ),
            True,
        )
        right = [sum(1 for r in rewards[i : i + n] if r) for i in range(0, len(rewards), n)]
        tokens = sum(len(a.response_ids) for a in answers)
        entropy = -sum(sum(a.logprobs) for a in answers) / tokens
        found = {f"pass_at_{k}": sum(pass_at_k(n, c, k) for c in right) / len(right) for k in (1, 2, 4, 8)}
        row = {"step": self.step, "samples": self.samples, "token_entropy": entropy, "tokens": tokens / len(answers)}
        self.evaluations.append(row | found)
        self.seconds["evaluation"] += time.monotonic() - start


def machine_of(run_dir: Path, sampler: Sampler, verifier: Verifier) -> Machine:
    """Prompts and problems of a run folder, and its base model."""
    from oapl_core.rollouts.generate import read_prompts
    from oapl_core.run_folder.run import Run
    from oapl_core.tables import PROBLEMS, read_table

    run = Run.open(run_dir)
    rows = read_table(run.problems, PROBLEMS).to_pylist()
    problems = {row["problem_id"]: row | {"is_thinking": False} for row in rows}
    measured = {name: read_prompts(run, name) for name in ("heldout", "validation")}
    return Machine(sampler, verifier, read_prompts(run, "train"), measured, problems, run.base_model())
