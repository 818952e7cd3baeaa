"""A comparison: several objectives, each with several seeds, trained from one checkpoint on one groups file.

Layout::

    data/runs/compare/<name>/compare.json  ledger.jsonl  logs/
      arms/<label>-seed<seed>/     a run folder each: a fork that shares problems, rollouts, verdicts and groups
      report/index.html  report/report.md  report/table.csv  report/*.png

An arm is a run as any other (`oapl status`, `oapl report`, `oapl figures` read it). It does its own training and
evaluation; the rest are hard links to files of the common run. An arm costs its training and its measurement.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Self

from oapl_core.errors import ConfigError, DataError, Diverged, Interrupted
from oapl_core.files import read_record
from oapl_core.planning.plan import Step, conclusion, finished, preparation, round_steps, whole_round
from oapl_core.run_folder.ledger import StageEntry
from oapl_core.run_folder.recorded import Recorded
from oapl_core.run_folder.run import Run
from oapl_core.settings.experiment import Experiment
from oapl_core.settings.experiment_file import (
    FORMAT,
    check_format,
    differences,
    parse_as,
    parse_experiment,
    refuse_unused,
    write_record,
)
from oapl_core.settings.rehearsal import at_the_end_alone
from oapl_extras.compare.settings import ArmConfig, ComparisonConfig

MEASURING = Step("measuring the arms", "oapl_extras.compare.measuring", None, ())
REPORTING = Step("report of the comparison", "oapl_extras.compare.together", None, ("report",))
"""Step that no arm does by itself."""
_RECORD = "compare.json"
_PLACES = {"runs_dir", "cache_dir", "engine_python", "mirror", "time_limits_h", "report", "fleet"}
"""Settings of an arm that may change: they do not say what it is."""


@dataclass(frozen=True)
class Arm:
    """One arm with one seed."""

    label: str
    seed: int
    config: Experiment
    """Settings of its run."""
    stage: str
    """The first of the round that it does itself: `training`, or `groups` where it keeps other groups."""

    @property
    def name(self) -> str:
        """Label and seed: ``GRPO, seed 1``."""
        return f"{self.label}, seed {self.seed}"

    @property
    def root(self) -> Path:
        """Run folder of the arm."""
        return self.config.run_dir

    @property
    def round(self) -> int:
        """The round that it trains: its last."""
        return len(self.config.rounds) - 1

    @property
    def steps(self) -> tuple[Step, ...]:
        """Steps that it does itself before it is measured."""
        *_, groups, training = round_steps(self.round)
        return (groups, training) if self.stage == "groups" else (training,)

    @property
    def training(self) -> Step:
        """The last of them."""
        return self.steps[-1]

    def called(self, step: Step) -> Step:
        """Name one of its steps so that a person can tell it from other arms'."""
        return replace(step, title=f"{self.name}: {step.word}")

    @property
    def is_begun(self) -> bool:
        """Whether it has a run folder."""
        return (self.root / "run.json").exists()

    def run(self) -> Run:
        """Open its run; the folder exists."""
        return Run.open(self.root)

    def last(self, step: Step) -> StageEntry | None:
        """Find the ledger's line of the last process of ``step``; None if there was none."""
        if not self.is_begun:
            return None
        return next((e for e in reversed(self.run().ledger.stages()) if e.stage == step.label), None)

    @property
    def failure(self) -> str | None:
        """Why it was not trained to its end, if its last process failed; one that was stopped has not."""
        ended = [self.last(step) for step in self.steps]
        fine = (0, Interrupted.exit_code)
        failed = (entry for entry in ended if entry and entry.exit_code not in fine)
        return next((entry.error or f"exit code {entry.exit_code}" for entry in failed), None)

    @property
    def has_diverged(self) -> bool:
        """Whether training ended in numbers that are not finite, which it would do again."""
        entry = self.last(self.training)
        return entry is not None and entry.exit_code == Diverged.exit_code

    @property
    def is_trained(self) -> bool:
        """Whether its training is finished."""
        return self.is_begun and self.training in finished(self.run())

    @property
    def is_measured(self) -> bool:
        """Whether its evaluation is finished too."""
        return self.is_begun and conclusion(self.config)[0] in finished(self.run())


@dataclass(frozen=True)
class Comparison(Recorded):
    """An opened comparison folder."""

    config: ComparisonConfig
    parent: Run
    """The run whose rollouts the arms share."""

    @classmethod
    def create(cls, config: ComparisonConfig, parent: Run) -> Self:
        """Make or reopen the folder. Arms and seeds may be added; settings of an arm that was begun may not change.

        Raises:
            ConfigError: the folder belongs to another run's rollouts, or an arm cannot be what it is to be.
        """
        made = cls(folder_of(config, parent), config, parent)
        if (made.root / _RECORD).exists():
            before = cls.open(made.root)
            if before.parent.root.resolve() != parent.root.resolve() or before.config.round != config.round:
                raise ConfigError(
                    f"{made.root}: compares arms on round {before.config.round} of {before.parent.root}; give this "
                    "comparison another name"
                )
        for arm in made.arms:  # before the record is written: what is refused changes nothing
            made.check(arm)
        record = {"format": FORMAT, "config": config.model_dump(mode="json"), "run": str(parent.root)}
        write_record(made.root / _RECORD, record)
        return made

    @classmethod
    def open(cls, root: Path) -> Self:
        """Open an existing folder.

        Raises:
            DataError: it is not one.
        """
        try:
            content = json.loads(read_record(root / _RECORD))
            check_format(content, root / _RECORD)
            values, parent = content["config"], Path(content["run"])
        except (FileNotFoundError, NotADirectoryError):
            raise DataError(f"{root}: is not a comparison folder (no {_RECORD}); `oapl compare` makes one") from None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(f"{root / _RECORD}: is not readable ({error}); run `oapl compare` again") from None
        # the recorded path is relative to the folder of the start; where comparisons lie, the run is found from any
        beside = root.parent.parent / parent.name
        run = Run.open(beside if (beside / "run.json").exists() else parent)
        return cls(root, parse_as(ComparisonConfig, values, str(root / _RECORD)), run)

    @property
    def python(self) -> Path | None:
        """Interpreter that the stages run in."""
        return self.parent.python

    @property
    def origin(self) -> Path:
        """Folder that relative paths of the shared run, and of every arm, start at."""
        return self.parent.origin

    @property
    def report(self) -> Path:
        """Folder of the report."""
        return self.root / "report"

    @cached_property
    def arms(self) -> tuple[Arm, ...]:
        """Every arm with every seed: all arms of the first seed, then those of the next.

        Raises:
            ConfigError: an arm's settings cannot be used.
        """
        return tuple(self._arm(arm, seed) for seed in self.config.seeds for arm in self.config.arms)

    def _arm(self, arm: ArmConfig, seed: int) -> Arm:
        config, number, values = self.config, self.config.round, self.parent.config.model_dump(mode="json")
        before = values["rounds"][number]
        mine = {
            "epochs": arm.epochs or config.epochs or before["epochs"],
            "keep": list(arm.keep) if isinstance(arm.keep, tuple) else arm.keep or before["keep"],
            "truncated": arm.truncated or before["truncated"],
        }
        # what the round has of its own becomes the arm's, beside the arm's objective
        whole = before | mine | {"objective": None, "training": {}}
        training = values["training"] | before["training"] | config.training | arm.training
        # resolved settings of the run, so that a default that changes later changes no arm that was begun
        values |= {
            "name": arm.folder,
            "seed": seed,
            "runs_dir": self.root / "arms",
            "mirror": None,
            # a limit is of the common run: an arm that it ended would not be comparable
            "stop": {},
            "objective": arm.objective.model_dump(mode="json"),
            "training": training,
            "evaluation": values["evaluation"] | at_the_end_alone(self.parent.config.evaluation) | config.evaluation,
            "rounds": [*values["rounds"][:number], whole],
        }
        # other epochs read the same groups; another filter needs its own
        stage = "groups" if before | {"epochs": mine["epochs"]} != before | mine else "training"
        where = f"arm {arm.label!r}"
        return Arm(arm.label, seed, refuse_unused(parse_experiment(values, where), where, self.parent.config), stage)

    @property
    def titles(self) -> list[str]:
        """List the titles of every step that there may be, in order."""
        common = [step.title for step in needed_steps(self.config, self.parent)]
        own = [arm.called(step).title for arm in self.arms for step in arm.steps]
        return [*common, *own, MEASURING.title, REPORTING.title]

    def check(self, arm: Arm) -> None:
        """See that an arm that was begun is still what it is to be.

        Raises:
            ConfigError: it has other settings.
        """
        if not arm.is_begun:
            return
        old, new = (c.model_dump(mode="json", exclude=_PLACES) for c in (arm.run().config, arm.config))
        changed = differences(old, new)
        if changed:
            raise ConfigError(
                f"{arm.name}: was begun with other settings ({'; '.join(changed[:3])}); give it another label, or "
                f"delete {arm.root}"
            )

    def data_of(self, arm: Arm) -> "Data":
        """Return the data that ``arm`` was trained on, as its ledger says.

        Raises:
            DataError: it is not trained, or not on the common rollouts and from the common checkpoint.
        """
        run, number = arm.run(), arm.round
        entry = run.ledger.artifacts().get(run.name(run.checkpoint(number, 1)))
        if entry is None:
            raise DataError(f"{arm.root}: is not trained")
        # what the trainer recorded as its inputs, not what lies there now: that may have been made again since
        groups, start = (entry.inputs[run.name(path)] for path in (run.groups(number), run.policy(number)))
        round_config = run.config.rounds[number]
        band = [f"pass rate {low:g} to {high:g}" for low, high in filter(None, [round_config.pass_rate])]
        uncut = ["none that was cut"] if round_config.truncated == "drop" else []
        kept = ", ".join([*round_config.filters, *band, *uncut])
        rollouts = _digests(run, number)
        if rollouts != _digests(self.parent, number):
            raise DataError(
                f"{arm.root}: its rollouts or verdicts are not those of {self.parent.root}; delete the folder to train "
                "the arm again"
            )
        return Data(rollouts, groups, start, kept)


@dataclass(frozen=True)
class Data:
    """Data that an arm was trained on."""

    rollouts: Mapping[str, str]
    """sha256 of every part of rollouts and verdicts."""
    groups: str
    """sha256 of the groups file."""
    start: str
    """sha256 of the checkpoint that training started from."""
    kept: str
    """Rule by which groups are kept, in words."""


def _digests(run: Run, number: int) -> dict[str, str]:
    folders = tuple(f"{run.name(folder)}/" for folder in (run.rollouts(number), run.verdicts(number)))
    return {name: entry.sha256 for name, entry in run.ledger.artifacts().items() if name.startswith(folders)}


def folder_of(config: ComparisonConfig, parent: Run) -> Path:
    """Return the folder of the comparison."""
    return parent.root.parent / "compare" / config.name


def needed_steps(config: ComparisonConfig, parent: Run) -> Iterator[Step]:
    """Yield the steps of the common run that must be finished before any arm can begin, in order."""
    yield from preparation(parent.config)
    for number in range(config.round):
        yield from whole_round(parent.config, number)
    yield from round_steps(config.round, parent.config.rounds[config.round])[:-1]


def state_of(arm: Arm) -> str:
    """Return ``measured``, ``trained``, ``diverged``, ``failed`` or ``to do``."""
    if arm.is_measured:
        return "measured"
    if arm.is_trained:
        return "trained"
    if arm.has_diverged:
        return "diverged"
    return "failed" if arm.failure else "to do"
