"""A person's own function, named ``module:function``: where its source lies, and whether it can be imported.

Modules are looked for in the current folder (a run's stages work where the run was started), then where Python looks.
Nothing is imported here: a person's module may be heavy, or end the process. Reads source files; writes nothing.
"""

import json
import subprocess
import sys
from importlib.machinery import PathFinder
from pathlib import Path

from oapl_core.errors import ConfigError
from oapl_core.files import sha256_of

IMPORT_SECONDS = 300.0
"""A module that imports torch from a network disk is slow, and not stuck."""
_IMPORTED = 73
"""No module that ends the process ends it with this."""
_CODE_ROOT = str(Path(__file__).resolve().parents[1])
_TRY = """
import importlib, json, sys
sys.path[:0] = json.loads(sys.argv[1])
module, name = sys.argv[2].split(":")
try:
    found = getattr(importlib.import_module(module), name)
except BaseException as error:
    sys.exit(f"{type(error).__name__}: {error}")
sys.exit(73 if callable(found) else "it is not a function")
"""


def search_path() -> list[str]:
    """Where its module is looked for."""
    return [str(Path.cwd()), *(p for p in sys.path if p), _CODE_ROOT]


def source_hash(function: str) -> str | None:
    """SHA-256 of the file of its module; None if there is none. What that imports is not looked at."""
    # find_spec of a dotted name would import its packages; part by part nothing runs
    path: list[str] | None = search_path()
    spec, name = None, ""
    for part in function.partition(":")[0].split("."):
        name = f"{name}.{part}" if name else part
        spec = PathFinder.find_spec(name, path)
        if spec is None:
            return None
        path = list(spec.submodule_search_locations or ())
    return sha256_of(Path(spec.origin)) if spec and spec.has_location and spec.origin else None


def check_import(function: str, key: str, python: Path | None = None) -> None:
    """Import it once in a process of its own, by ``python`` if the stages run in another interpreter.

    Raises:
        ConfigError: it cannot be imported; one line that begins with the setting's ``key``.
    """
    command = [str(python or sys.executable), "-I", "-B", "-c", _TRY, json.dumps(_paths(python)), function]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=IMPORT_SECONDS, cwd=Path.cwd()
        )
        # the last line: a module may print warnings as it is imported
        why = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:] if done.returncode != _IMPORTED else []
        failed = done.returncode != _IMPORTED
    except subprocess.TimeoutExpired:
        failed, why = True, [f"more than {IMPORT_SECONDS:.0f} s"]
    if failed:
        reason = why[0] if why else "its process ended"
        raise ConfigError(
            f"`{key}`: {function} cannot be imported ({reason}); modules are looked for in {Path.cwd()} first"
        )


def _paths(python: Path | None) -> list[str]:
    """For another interpreter only what is ours: it has its own packages."""
    return search_path() if python is None else [str(Path.cwd()), _CODE_ROOT]
