"""The toolchain that a problem asks for; None stands for Python, which the fork servers run themselves.

Toolchains are looked up by name (languages/): a run for Python alone loads none. Reads nothing itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from oapl_core import plugins

if TYPE_CHECKING:
    from oapl_core.toolchain import Toolchain

PYTHON = "python"
ASKED_BY = "language"
"""Column of tables.PROBLEMS that names a toolchain; a row without it asks for Python."""
PYTHON_WORDS = {"name": PYTHON, "title": "Python", "fence": PYTHON, "comment": "#"}


def toolchain_of(problem: Mapping[str, Any]) -> Toolchain | None:
    """Return the toolchain that a row of tables.PROBLEMS asks for; None: Python. Raises DataError for no such one."""
    name = problem.get(ASKED_BY) or PYTHON
    if name == PYTHON:
        return None
    found: Toolchain = plugins.resolve("toolchain", "described")(name)
    return found


def toolchains_of(problems: Iterable[Mapping[str, Any]]) -> list[Toolchain]:
    """Return the toolchains of these rows, each once, by name."""
    found = {one.name: one for one in map(toolchain_of, problems) if one}
    return [found[name] for name in sorted(found)]
