"""The mark that a checker of one's own needs, since the row that names it may be somebody else's.

Reads the source of a module before it is imported.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from oapl_core.errors import ConfigError
from oapl_core.plugins.own_function import source_of


def marked(name: str, load: Callable[[], Any]) -> Any:
    """Return the checker that ``load`` imports.

    Raises:
        ConfigError: it has no mark, or its module cannot have one and was not imported; one line.
    """
    found = load() if _may_be_marked(name) else None
    if not getattr(found, "is_oapl_checker", False):
        raise ConfigError(
            f"`checker`: {name} is not marked, and a row may be somebody else's; if the function is yours, put "
            "`@checker` of oapl_core.checkers before it"
        )
    return found


@cache
def _may_be_marked(name: str) -> bool:
    source = source_of(name)
    if source is None:
        raise ConfigError(f"`checker`: {name}: there is no such module; they are looked for in {Path.cwd()} first")
    return b"oapl_core.checkers" in source.read_bytes()
