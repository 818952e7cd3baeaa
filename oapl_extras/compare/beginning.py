"""Beginning of a comparison: its file, the run whose rollouts are shared, and the forks that are the arms' runs.

Reads the comparison file, TOML as an experiment's with ``key.sub=value`` overrides; makes run folders of arms.
"""

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from oapl_core.changing.forking import fork_as
from oapl_core.errors import ConfigError, DataError
from oapl_core.planning.plan import Step, preparation, round_steps
from oapl_core.planning.stages import PREPARATION
from oapl_core.run_folder.opening import find
from oapl_core.run_folder.run import Run, parts_of
from oapl_core.settings.experiment_file import parse_as, read_toml
from oapl_core.shipped import experiment_file
from oapl_core.tables import GROUPS, PROBLEMS, PROMPTS, ROLLOUTS, VERDICTS, open_table
from oapl_extras.compare.folder import Arm, Comparison
from oapl_extras.compare.settings import ComparisonConfig

Columns = Sequence[tuple[str, str]]


def read_comparison(path: Path, overrides: Sequence[str] = ()) -> tuple[ComparisonConfig, Run]:
    """Read the comparison in a file, and the run whose rollouts it shares, whose folder need not exist yet.

    Raises:
        ConfigError: the file, or an experiment that it names, cannot be used.
        DataError: the run that it names is not one.
    """
    config = parse_as(ComparisonConfig, read_toml(path, overrides), str(path))
    source, settings = source_of(config, path)
    parent = find(source, settings)
    # an experiment that was changed since its run began would give other rollouts than those that are there
    if config.experiment and (parent.root / "run.json").exists():
        parent = Run.of(parent.config)  # says which settings differ
    if config.round >= len(parent.config.rounds):
        last = len(parent.config.rounds) - 1
        raise ConfigError(f"{path}: round = {config.round}, but {parent.root} has rounds 0..{last}")
    rows = parent.config.rounds[config.round].source
    if not rows.has_rollouts:
        raise ConfigError(
            f"{path}: round = {config.round} of {parent.root} trains on {rows.rows_are}, and arms share rollouts; "
            "name a round that has rollouts"
        )
    return config, parent


def source_of(config: ComparisonConfig, path: Path) -> tuple[Path, tuple[str, ...]]:
    """Experiment file or run folder of the common run, and its overrides; ``path`` is the comparison file."""
    if config.run:
        return config.run, ()
    assert config.experiment is not None
    return experiment_file(path).parent / config.experiment, config.overrides  # an absolute path stays what it is


def check_tables(comparison: Comparison) -> None:
    """See that what the arms will read of the common run has the columns that training and measuring need.

    Reads the footers of what is there; what is not is made before the arms begin. Nothing is asked if no arm is left.

    Raises:
        DataError: a table was written by another version, or cannot be read; says how to make it again.
    """
    # what all arms have behind them may be of any version
    stages = {arm.stage for arm in comparison.arms if not arm.is_measured}
    run, number = comparison.parent, comparison.config.round
    recorded = run.ledger.artifacts().keys() - run.ledger.removals().keys() if stages else set()
    for path, columns, step in _tables(run, number, stages):
        # what was cleaned away is made again before an arm begins, in today's columns
        if run.name(path) not in recorded or not path.exists():
            continue
        try:
            with open_table(path, columns):
                pass
        except DataError as error:
            again = f"--redo {step.word}" + ("" if step.round is None else f" --round {step.round}")
            what = f"`oapl run {run.root} {again}` makes it again; no arm was begun on it"
            raise DataError(f"{str(error).partition(';')[0]}; {what}") from None


def _tables(run: Run, number: int, stages: Collection[str]) -> Iterator[tuple[Path, Columns, Step]]:
    """Yield each table that arms beginning with these stages read, with its columns and the step that makes it."""
    prepare = next(step for step in preparation(run.config) if step.stage is PREPARATION)
    sampling, verification, groups, _ = round_steps(number, run.config.rounds[number])
    yield run.problems, PROBLEMS, prepare
    yield run.prompts, PROMPTS, prepare
    if "training" in stages:
        yield run.groups(number), GROUPS, groups
    if "groups" in stages:
        yield from ((part, ROLLOUTS, sampling) for part in parts_of(run.rollouts(number)))
        yield from ((part, VERDICTS, verification) for part in parts_of(run.verdicts(number)))


def begin(comparison: Comparison, arm: Arm) -> Run:
    """Return the run of ``arm``, forked from the common run if it is new.

    Raises:
        OaplError: as ``changing.forking.fork``.
    """
    if arm.is_begun:
        return arm.run()
    return fork_as(comparison.parent, arm.config, comparison.config.round, arm.stage, arm.root).run
