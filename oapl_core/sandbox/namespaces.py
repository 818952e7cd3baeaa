"""What a program, and the checks beside it, find under which name."""

from collections.abc import Mapping
from typing import Any


def entry(names: Mapping[str, Any], name: str) -> Any:
    """The function that tests call: a method of class `Solution`, or a function of that name.

    Raises:
        NameError: the program has neither.
    """
    solution = names.get("Solution")
    if isinstance(solution, type) and hasattr(solution, name):
        return getattr(solution(), name)
    found = names.get(name)
    if not callable(found):
        raise NameError(f"the program defines no function {name!r}")
    return found


def declare(starter: str, names: dict[str, Any]) -> None:
    """Adds what a problem's starter code declares; code that does not run by itself declares nothing."""
    mine = dict(names)
    try:
        exec(compile(starter, "starter.py", "exec", dont_inherit=True), mine)
    except Exception:  # an unfinished piece of code, as starter code is
        return
    names.update(mine)
