"""How a person names a run on the command line: its folder, or its name below data/runs. Light to import."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from oapl_core.run_folder.run import Run


def open_run(name: str) -> "Run":
    """The run that ``name`` means.

    Raises:
        DataError: there is none.
    """
    from oapl_core.run_folder.run import Run

    below = Path("data/runs") / name
    return Run.open(below if below.is_dir() and not Path(name, "run.json").exists() else Path(name))
