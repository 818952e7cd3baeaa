"""Job of one training: its inputs, its settings and the places of its files; reads the ledger, writes nothing."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from oapl_core import plugins
from oapl_core.errors import DataError
from oapl_core.objectives import Method
from oapl_core.run_folder.recorded import named_policies
from oapl_core.run_folder.run import Run
from oapl_core.seeds import derive_seed
from oapl_core.settings.rows import RowSource
from oapl_core.settings.training import TrainingConfig, droppable_epochs
from oapl_core.training.examples import UNKNOWN


@dataclass(frozen=True)
class Job:
    """One round's training and what its artifacts depend on."""

    run: Run
    round_number: int
    epochs: int
    inputs: Mapping[str, str]
    settings: Mapping[str, Any]

    @property
    def title(self) -> str:
        """Name of the training for a person."""
        return f"round {self.round_number}"

    @property
    def command(self) -> tuple[str, ...]:
        """Module below ``oapl_core`` that trains it, and its arguments after the run folder."""
        return "training.train", "--round", str(self.round_number)

    @property
    def training(self) -> TrainingConfig:
        """Settings by which the policy is trained in this round."""
        return self.run.config.of_round(self.round_number).training

    @cached_property
    def objective(self) -> Method:
        """The loss.

        Raises:
            ConfigError: it is a person's own and cannot be loaded.
        """
        return self.run.config.of_round(self.round_number).objective.loaded(self.training.reference)

    @property
    def source(self) -> RowSource:
        """Source of the rows."""
        return self.run.config.rounds[self.round_number].source

    @property
    def seed(self) -> int:
        """Seed from which random choices are derived, together with the number of the round."""
        seed, word = self.run.config.seed, self.source.seed_word
        return derive_seed(seed, word) if word else seed

    @property
    def data(self) -> Path:
        """File of the rollouts to train on (tables.GROUPS)."""
        return self.run.groups(self.round_number)

    @property
    def start(self) -> Path:
        """The policy that the round starts from."""
        return self.run.policy(self.round_number)

    @property
    def behavior(self) -> Path:
        """The policy that sampled what is trained on."""
        return self.run.behavior(self.round_number)

    @property
    def other_policies(self) -> set[str]:
        """Policies that the ledger names of imported rollouts and of groups that earlier rounds sampled."""
        places = (f"{self.run.name(self.run.rollouts(self.round_number))}/", self.run.name(self.data))
        artifacts = self.run.ledger.artifacts().items()
        # `unknown` names no policy: such rows have no log-probs, or the trainer's own are compared
        mine = (named_policies(entry.details) for name, entry in artifacts if name.startswith(places))
        return set[str]().union(*mine) - {UNKNOWN}

    @property
    def lag(self) -> int:
        """Number of rounds by which the policy that sampled is older than the one that training starts from."""
        return self.round_number - self.run.config.sampling_round(self.round_number)

    @property
    def lag_steps(self) -> int:
        """The same in optimiser steps: how many the rounds in between took.

        Raises:
            DataError: the ledger does not say so of one of them.
        """
        artifacts, steps = self.run.ledger.artifacts(), 0
        for number in range(self.round_number - self.lag, self.round_number):
            for epoch in range(1, self.run.config.rounds[number].epochs + 1):
                name = self.run.name(self.run.checkpoint(number, epoch))
                entry = artifacts.get(name)
                if entry is None or "steps" not in entry.details:
                    raise DataError(
                        f"{self.run.root}: the ledger does not say how many optimiser steps made {name}, so the lag of "
                        "what it sampled is unknown; `oapl run` with --redo training makes it again"
                    )
                steps += int(entry.details["steps"])
        return steps

    @property
    def states(self) -> Path:
        """Folder of the saved states."""
        return self.run.states(self.round_number)

    @property
    def kept_state(self) -> Path | None:
        """Folder of the state that the round leaves to the next one; None if it leaves none."""
        leaves = self.run.config.leaves_optimizer(self.round_number)
        return self.run.optimizer_state(self.round_number) if leaves else None

    def droppable(self, finished: int) -> range:
        """Return the epochs, from 1, whose weights need not stay once ``finished`` are exported."""
        rounds = len(self.run.config.rounds)
        return droppable_epochs(self.training.keep_checkpoints, rounds, self.round_number, finished)

    @property
    def stop_file(self) -> Path:
        """Made by the process that launched the ranks when it is asked to stop."""
        return self.states.with_name(".tmp-stop")

    def checkpoint(self, epoch: int) -> Path:
        """Return the Hugging Face folder after ``epoch``."""
        return self.run.checkpoint(self.round_number, epoch)

    def is_done(self, epoch: int) -> bool:
        """Return whether the checkpoint after ``epoch`` is there for these inputs and settings."""
        return self.run.is_done(self.checkpoint(epoch), self.inputs, self.settings)

    @property
    def mismatch_settings(self) -> dict[str, Any]:
        """Everything that the comparison with the engine depends on, the job's inputs apart."""
        training = self.training
        return {"sequences": training.trust_sequences, "dtype": training.dtype, "seed": self.run.config.seed}

    @property
    def is_compared(self) -> bool:
        """Whether the comparison with the engine is there, or the round never had one."""
        path = self.run.mismatch(self.round_number)
        made = self.run.ledger.has_made(self.run.name(path))
        return not made or self.run.is_done(path, self.inputs, self.mismatch_settings)

    @property
    def is_trained(self) -> bool:
        """Whether every epoch is there, and what the next round continues from."""
        kept = self.kept_state is None or self.run.is_done(self.kept_state, self.inputs, self.settings)
        return kept and all(self.is_done(epoch) for epoch in range(1, self.epochs + 1))


def make_job(run: Run, round_number: int) -> Job:
    """Make the job that trains a round of ``run``.

    Raises:
        DataError: there is no such round, or its groups or the checkpoint that it continues from are missing.
    """
    run.check_round(round_number)
    config = run.config.of_round(round_number)
    epochs = config.rounds[round_number].epochs
    settings = {
        "training": config.training.slice,
        "objective": config.objective.slice,
        "seed": config.seed,
        "round": round_number,
        "epochs": epochs,
    }
    inputs = [run.groups(round_number), run.policy(round_number)]
    if config.continues_optimizer(round_number):
        # an input by its hash in the ledger, also when it is deleted: the round's own deletion must not undo it
        before = run.optimizer_state(round_number - 1)
        if run.name(before) not in run.ledger.artifacts():
            plugins.resolve("training", "optimizer_state")(run, round_number)
        inputs.append(before)
    return Job(run, round_number, epochs, run.inputs(inputs), settings)
