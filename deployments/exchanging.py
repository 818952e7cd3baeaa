"""Rollouts in and out from the command line: holds the run folder and starts the stage of ``oapl_core.exchange``."""

from collections.abc import Sequence
from pathlib import Path

from deployments.terminal import tell
from oapl_core.launch import run_stage
from oapl_core.run_folder.lock import hold
from oapl_core.run_folder.opening import check, check_disk
from oapl_core.run_folder.run import Run
from oapl_core.settings.experiment_file import load_experiment


def import_rollouts(source: Path, path: Path, overrides: Sequence[str], number: int) -> None:
    """Make the run folder of the experiment in ``path``, if it is new, and take ``source`` as its round ``number``.

    Raises:
        OaplError: one line that says what is wrong.
    """
    experiment = load_experiment(path, overrides)
    check(experiment)
    check_disk(Run(experiment.run_dir, experiment))
    with hold(experiment.run_dir):
        opened = Run.create(experiment)
        arguments = ["--round", str(number), "--source", str(source)]
        run_stage(opened, "exchange.import_rollouts", arguments, on_progress=tell)
        tell(f"{opened.root}: `oapl run {path}` goes on with these rollouts")


def export(opened: Run, destination: Path, number: int) -> None:
    """Write round ``number`` to ``destination``.

    Raises:
        OaplError: one line that says what is wrong.
    """
    with hold(opened.root):
        arguments = ["--round", str(number), "--to", str(destination)]
        run_stage(opened, "exchange.export", arguments, on_progress=tell)
