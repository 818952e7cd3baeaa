"""Names that come from a mirror or a queue: who can write there must not choose where this machine writes. Pure.

An artifact's name is one that a run folder has, in plain components; a file's name in a folder leads nowhere else.
"""

from pathlib import Path, PurePosixPath

from oapl_core.errors import DataError
from oapl_core.run_folder.ledger import Records
from oapl_core.run_folder.run import SAVED_STATES
from oapl_core.run_folder.storage import ROUND_KINDS, classify

_KINDS = {*ROUND_KINDS, "problems", "report"}
"""Kinds of a run folder's files that are recorded: not its own records, nor files that a process left there."""
_NEXT = "whoever wrote there may want to write elsewhere on this machine; nothing was changed"


def is_plain(name: object) -> bool:
    """Tell whether ``name`` is one component of a path, of printable characters, and not hidden."""
    return isinstance(name, str) and name.isprintable() and PurePosixPath(name).name == name and name[:1] != "."


def is_inside(name: str) -> bool:
    """Tell whether a relative name stays in its folder, whatever it is joined to."""
    parts = name.split("/")
    return name.isprintable() and not {"", ".", ".."} & set(parts) and "\\" not in name


def refuse_foreign(records: Records, where: str) -> None:
    """Look at every name that lines of a foreign ledger have.

    Raises:
        DataError: one is not a name of an artifact in a run folder.
    """
    names = [*records.artifacts, *records.superseded]
    wrong = next((name for name in names if not is_artifact(name)), None)
    if wrong is None:
        wrong = next(
            (fork.objective for fork in records.forks if fork.objective and not is_plain(fork.objective)), None
        )
    if wrong is not None:
        raise DataError(f"{where}: its ledger names {wrong!r:.120}, which is no artifact of a run folder; {_NEXT}")


def is_artifact(name: object) -> bool:
    """Tell whether an artifact of a run folder may have this name."""
    if not isinstance(name, str) or not all(is_plain(part) for part in name.split("/")) or not is_inside(name):
        return False
    parts = PurePosixPath(name).parts
    return classify(parts)[0] in _KINDS and SAVED_STATES not in parts


def inside(root: Path, name: str, where: str) -> Path:
    """Return the path of the file or folder ``name`` of ``root``.

    Raises:
        DataError: a symbolic link on the way leads out of ``root``.
    """
    path = root / name
    if not path.parent.resolve().is_relative_to(root.resolve()) or path.is_symlink():
        raise DataError(f"{where}: {path} is, or lies behind, a symbolic link; fetch into another folder")
    return path
