"""Trains the model on demonstrations before round 0: ``python -m oapl_core.training.warm_start RUN_DIR``.

The training of a round, with the objective `sft`: reads warm_start/demonstrations.parquet, which has the columns of a
round's groups and no log-probs, and the base model. Writes warm_start/epoch_NN, Hugging Face folders with
``training_metrics.jsonl``; round 0 starts from the last one.
"""

from pathlib import Path

from oapl_core.errors import ConfigError
from oapl_core.objectives import Method, Sft
from oapl_core.run_folder.run import SAVED_STATES, Run
from oapl_core.seeds import derive_seed
from oapl_core.settings.training import TrainingConfig, droppable_epochs
from oapl_core.stage import run_verb
from oapl_core.tracking.figures import WARM_START
from oapl_core.training.examples import UNKNOWN, Examples, read_examples
from oapl_core.training.job import Job
from oapl_core.training.train import carry_out


class WarmStart(Job):
    """What precedes round 0: nobody sampled what it trains on, and it leaves no optimiser."""

    @property
    def title(self) -> str:
        """What a person calls it."""
        return "warm start"

    @property
    def axis(self) -> str:
        """Where trackers show its steps."""
        return WARM_START

    @property
    def command(self) -> tuple[str, ...]:
        """Module below ``oapl_core`` that trains it."""
        return ("training.warm_start",)

    @property
    def training(self) -> TrainingConfig:
        """That of the rounds, with what the warm start says itself."""
        rounds, own = self.run.config.training, self.run.config.warm_start
        return own.training(rounds) if own else rounds

    @property
    def objective(self) -> Method:
        """Token cross-entropy, whatever the rounds have."""
        return Sft()

    @property
    def seed(self) -> int:
        """Other choices than round 0's, whose number it has."""
        return derive_seed(self.run.config.seed, "warm start")

    @property
    def data(self) -> Path:
        """Demonstrations."""
        return self.run.demonstrations

    @property
    def start(self) -> Path:
        """The base model."""
        return self.run.base_model()

    @property
    def behavior(self) -> Path:
        """No policy sampled the demonstrations; this one knows their tokens."""
        return self.start

    @property
    def states(self) -> Path:
        """Folder of the saved states."""
        return self.run.demonstrations.with_name(SAVED_STATES)

    @property
    def is_compared(self) -> bool:
        """Nothing to compare with: no engine sampled what it trains on."""
        return True

    @property
    def kept_state(self) -> None:
        """Round 0 begins an optimiser of its own."""
        return

    def checkpoint(self, epoch: int) -> Path:
        """Hugging Face folder after ``epoch``."""
        return self.run.warm_start(epoch)

    def droppable(self, finished: int) -> range:
        """Epochs, from 1, whose weights need not stay: a round always follows."""
        return droppable_epochs(self.training.keep_checkpoints, 2, 0, finished)


def make_warm_start(run: Run) -> WarmStart:
    """The warm start of ``run``.

    Raises:
        ConfigError: it has none.
        DataError: the demonstrations or the base model are missing.
    """
    settings = run.config.warm_start
    if settings is None:
        raise ConfigError(f"{run.root}: the experiment has no [warm_start]")
    depends = {
        "training": settings.training(run.config.training).slice,
        "objective": Sft().model_dump(mode="json"),
        "seed": run.config.seed,
        "epochs": settings.epochs,
    }
    return WarmStart(run, 0, settings.epochs, run.inputs([run.demonstrations, run.base_model()]), depends)


def warm_start(run: Run) -> None:
    """Train every epoch of the warm start that is not there yet.

    Raises:
        OaplError: as ``train``.
    """
    carry_out(make_warm_start(run), _examples)


def _examples(job: Job) -> Examples:
    return read_examples(job.data, UNKNOWN, job.start, recorded=False)


if __name__ == "__main__":
    raise SystemExit(run_verb(warm_start, has_round=False))
