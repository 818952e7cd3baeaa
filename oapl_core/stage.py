"""Code that every verb module shares: its command line, and one clear line, no traceback, for mendable errors."""

import argparse
import errno
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from oapl_core.errors import ConfigError, OaplError, StageFailed
from oapl_core.planning.preflight import before_stage
from oapl_core.planning.stages import BY_VERB
from oapl_core.plugins import resolve
from oapl_core.progress import end_output, written
from oapl_core.run_folder.recorded import Recorded
from oapl_core.run_folder.run import Run
from oapl_core.storable import lenient_output, one_line

ERROR_PREFIX = "error: "
_CODE_ROOT = Path(__file__).resolve().parents[1]


def run_verb(
    verb: Callable[..., None],
    has_round: bool,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    opens: Callable[[Path], Recorded] = Run.open,
) -> int:
    """Parse ``RUN_DIR [--round N]``, call ``verb`` and return its exit code; ``launch.py`` reads the error line.

    ``options`` maps further options to what ``argparse`` says of them; the verb gets each as a keyword. ``opens`` is
    what the folder is opened with.
    """
    lenient_output()
    options = options or {}
    parser = argparse.ArgumentParser(description=sys.modules[verb.__module__].__doc__)
    parser.add_argument("run_dir", type=Path, help="run folder made by `oapl run`")
    if has_round:
        parser.add_argument("--round", type=int, required=True, help="round, counted from 0")
    for name, meaning in options.items():
        parser.add_argument(f"--{name}", **meaning)
    args = parser.parse_args()
    try:
        given = {name: getattr(args, name) for name in options}
        run = _at_its_origin(opens, args.run_dir, given)
        if isinstance(run, Run):
            before_stage(run, _name(verb), args.round if has_round else None)
            if run.config.pipeline:
                resolve("setting", "pipeline")(run, _name(verb))
        verb(run, *([args.round] if has_round else []), **given)
    except OaplError as error:
        return _complain(str(error), error.exit_code)
    except OSError as error:
        return _complain(str(disk_error(error)), StageFailed.exit_code)
    except ModuleNotFoundError as error:
        return _complain(str(not_installed(error)), ConfigError.exit_code)
    finally:
        end_output()
    return 0


def _at_its_origin(opens: Callable[[Path], Recorded], root: Path, given: dict[str, Any]) -> Recorded:
    """Open the folder, from the one that its relative paths start at: a stage uses and records them as written.

    From another folder, the process changes to that one. Paths in ``given``, which start here, then become absolute.
    Processes of our own start with the code that runs here.
    """
    folder = opens(root)
    origin, here = folder.origin.absolute(), Path.cwd()
    if origin.samefile(here):
        return folder
    given.update({name: here / value for name, value in given.items() if isinstance(value, Path)})
    root = here / root
    os.chdir(origin)
    code = [str(_CODE_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ |= {"PYTHONPATH": os.pathsep.join(code), "PYTHONSAFEPATH": "1"}
    return opens(root)


def _name(verb: Callable[..., None]) -> str:
    """Return ``rollouts.generate``: what the verb's module is called in plan and ledger, also when it is a program."""
    spec = sys.modules[verb.__module__].__spec__
    module = spec.name if spec else verb.__module__
    return next((name for name, one in BY_VERB.items() if one.module == module), module.removeprefix("oapl_core."))


def disk_full(where: object) -> StageFailed:
    """Make the one-line error for a disk without room."""
    return StageFailed(
        f"{where}: no space left on the disk; free some and run the same command again, finished parts are kept"
    )


def disk_error(error: OSError) -> OaplError:
    """Make the one-line error for a full, read-only or forbidden disk; anything else is raised again as it is."""
    where = error.filename or "the run folder"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return disk_full(where)
    if error.errno == errno.EROFS:
        return StageFailed(f"{where}: the disk is read-only; choose another with runs_dir=... and cache_dir=...")
    if error.errno in (errno.EACCES, errno.EPERM):
        return StageFailed(f"{where}: permission denied; choose another folder with runs_dir=... and cache_dir=...")
    if error.errno in (errno.EIO, errno.ESTALE, errno.ENXIO, errno.ENODEV):
        return StageFailed(
            f"{where}: the disk does not read or write ({error.strerror}); look at it, then run the same command "
            "again: finished parts are kept"
        )
    raise error


def not_installed(error: ModuleNotFoundError) -> ConfigError:
    """Make the one-line error for a library that is not installed; a missing module of our own is raised again."""
    library = (error.name or "").partition(".")[0]
    if library in ("", "oapl_core", "tasks", "flows", "deployments"):
        raise error
    return ConfigError(
        f"{library} is not installed for {sys.executable}: this needs oapl[cpu], oapl[cuda] or oapl[ray] (a checkout: "
        "`make setup`, for Ray `make work`); stages run in another environment that has it where "
        "engine_python=/its/bin/python says so (docs/installing.md)"
    )


def _complain(message: str, code: int) -> int:
    written(sys.stderr, f"{ERROR_PREFIX}{one_line(message)}\n")
    return code
