"""How a person names a run on the command line: its folder, or its name below data/runs. Light to import."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from oapl_core.run_folder.run import Run


def open_run(name: str) -> "Run":
    """The run that ``name`` means.

    Raises:
        DataError: there is none.
    """
    from oapl_core.run_folder.run import Run

    return Run.named(name)
