"""Refuses solutions that `[pretrain]` cannot learn from before the first stage starts. Writes nothing."""

from oapl_core.pretraining.pretrain import read_solved
from oapl_core.run_folder.run import Run


def check_solutions(run: Run) -> None:
    """Read the file as the stage will, if it is there and the base model is not made yet.

    Raises:
        DataError: one line that names the file and the broken line.
    """
    pretrain = run.config.pretrain
    path = run.place(pretrain.solutions) if pretrain else None
    if path and path.is_file() and not run.base_record.exists():
        read_solved(path)
