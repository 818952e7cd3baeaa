"""The mark that a checker of one's own needs, since the row that names it may be somebody else's.

Reads the source of a module before it is imported.
"""

import re
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from oapl_core.errors import ConfigError
from oapl_core.plugins.own_function import source_of


def marked(name: str, load: Callable[[], Any]) -> Any:
    """Return the checker that ``load`` imports.

    Raises:
        ConfigError: it has no mark, or its module cannot have one and was not imported; one line.
    """
    _refuse_module(name)
    found = load()
    if not getattr(found, "is_oapl_checker", False):
        raise ConfigError(
            f"`checker`: {name} is not marked, and a row may be somebody else's; if the function is yours, put "
            "`@checker` of oapl_core.checkers before it"
        )
    return found


@cache  # of what passes: a file that was refused may be mended meanwhile
def _refuse_module(name: str) -> None:
    """Refuse a module that does not import the mark, before it runs."""
    source = source_of(name)
    if source is None:
        if find_spec(name.partition(":")[0].partition(".")[0]):  # installed by a hook of its own: a person's doing
            return
        raise ConfigError(f"`checker`: {name}: there is no such module; they are looked for in {Path.cwd()} first")
    try:
        text = source.read_bytes()
    except OSError:  # in a zip file
        return
    if not re.search(rb"\boapl_core\b[\s\S]*\bcheckers\b", text):
        raise ConfigError(
            f"`checker`: {name}: that module does not import oapl_core.checkers, so it was not imported; if the "
            "function is yours, name the module that defines it, and put `@checker` of oapl_core.checkers before it"
        )
