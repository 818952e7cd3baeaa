"""Where a comparison begins: its file, the run whose rollouts are shared, and the forks that are the arms' runs.

Reads the comparison file, TOML as an experiment's with ``key.sub=value`` overrides; makes run folders of arms.
"""

from collections.abc import Sequence
from pathlib import Path

from oapl_core.changing.forking import fork_as
from oapl_core.comparing.folder import Arm, Comparison
from oapl_core.errors import ConfigError
from oapl_core.run_folder.opening import find
from oapl_core.run_folder.run import Run
from oapl_core.settings.comparison import ComparisonConfig
from oapl_core.settings.experiment_file import parse_as, read_toml


def read_comparison(path: Path, overrides: Sequence[str] = ()) -> tuple[ComparisonConfig, Run]:
    """The comparison in a file, and the run whose rollouts it shares, whose folder need not exist yet.

    Raises:
        ConfigError: the file, or an experiment that it names, cannot be used.
        DataError: the run that it names is not one.
    """
    config = parse_as(ComparisonConfig, read_toml(path, overrides), str(path))
    source, settings = source_of(config, path)
    parent = find(source, settings)
    if config.experiment and (parent.root / "run.json").exists():
        parent = Run.of(parent.config)  # says which settings differ
    if config.round >= len(parent.config.rounds):
        last = len(parent.config.rounds) - 1
        raise ConfigError(f"{path}: round = {config.round}, but {parent.root} has rounds 0..{last}")
    return config, parent


def source_of(config: ComparisonConfig, path: Path) -> tuple[Path, tuple[str, ...]]:
    """Experiment file or run folder of the common run, and its overrides; ``path`` is the comparison file."""
    if config.run:
        return config.run, ()
    assert config.experiment is not None
    return path.parent / config.experiment, config.overrides  # an absolute path stays what it is


def begin(comparison: Comparison, arm: Arm) -> Run:
    """The run of ``arm``, forked from the common run if it is new.

    Raises:
        OaplError: as ``changing.forking.fork``.
    """
    if (arm.root / "run.json").exists():
        return arm.run()
    return fork_as(comparison.parent, arm.config, comparison.config.round, arm.stage, arm.root).run
