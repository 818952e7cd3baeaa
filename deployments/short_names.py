"""A Prefect plugin that lets `prefect deployment run oapl-round` mean `oapl-round/oapl-round`.

Prefect loads it through the entry point group ``prefect.plugins`` where ``plugins.enabled`` is set (pyproject.toml) and
calls its start-up hook before it reads the command line. Reads and changes ``sys.argv``, nothing else.
"""

import sys

from prefect.plugins import HookContext, register_hook

PREFECT_PLUGIN_API_REQUIRES = ">=0.1,<0.2"
NAMES = ("oapl-round", "oapl-experiment", "oapl-conclude", "oapl-evaluate", "oapl-compare", "oapl-measure")
"""Flows whose deployment has the same name (prefect.yaml); the last is the former name of oapl-evaluate."""


@register_hook
def setup_environment(*, ctx: HookContext) -> None:
    """Called by Prefect as it starts."""
    lengthen(sys.argv)


def lengthen(command: list[str]) -> None:
    """Write FLOW/DEPLOYMENT for the short name in ``prefect deployment run NAME ...``, in place."""
    if command[1:3] == ["deployment", "run"] and len(command) > 3 and command[3] in NAMES:
        command[3] = f"{command[3]}/{command[3]}"
