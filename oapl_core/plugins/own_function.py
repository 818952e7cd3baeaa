"""A person's own function, named ``module:function``: where its source lies.

Modules are looked for in the current folder (a run's stages work where the run was started), then where Python looks.
Nothing is imported here: a person's module may be heavy, or end the process. Reads source files; writes nothing.
"""

import sys
from importlib.machinery import PathFinder
from pathlib import Path

from oapl_core.files import sha256_of

IMPORT_SECONDS = 300.0
"""A module that imports torch from a network disk is slow, and not stuck."""
CODE_ROOT = str(Path(__file__).resolve().parents[2])
"""Folder that our own packages lie in."""


def search_path() -> list[str]:
    """List the folders where the module of a person's own is looked for."""
    return [str(Path.cwd()), *(p for p in sys.path if p), CODE_ROOT]


def source_hash(function: str) -> str | None:
    """SHA-256 of the file of its module; None if there is none. What that imports is not looked at."""
    source = source_of(function)
    return sha256_of(source) if source else None


def source_of(function: str) -> Path | None:
    """Find the file of its module without running anything; None if there is none."""
    # find_spec of a dotted name would import its packages; part by part nothing runs
    path: list[str] | None = search_path()
    spec = None
    for part in function.partition(":")[0].split("."):
        # by its own name: of a dotted one Python wants the folder above, without __init__.py, to be imported
        spec = PathFinder.find_spec(part, path)
        if spec is None:
            return None
        path = list(spec.submodule_search_locations or ())
    return Path(spec.origin) if spec and spec.has_location and spec.origin else None
