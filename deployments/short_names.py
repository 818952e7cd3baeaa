"""A Prefect plugin: `prefect deployment run oapl-round` means `oapl-round/oapl-round`, and every worker can be stopped.

Prefect loads it through the entry point group ``prefect.plugins`` where ``plugins.enabled`` is set (pyproject.toml) and
calls its start-up hook before it reads the command line. Reads and changes ``sys.argv`` and, of a worker, SIGINT.
"""

import signal
import sys

from prefect.plugins import HookContext, register_hook

PREFECT_PLUGIN_API_REQUIRES = ">=0.1,<0.2"
NAMES = ("oapl-round", "oapl-experiment", "oapl-conclude", "oapl-evaluate", "oapl-compare")
"""Flows whose deployment has the same name (prefect.yaml)."""


@register_hook
def setup_environment(*, ctx: HookContext) -> None:
    """Called by Prefect as it starts."""
    lengthen(sys.argv)
    heed_interrupts(sys.argv)


def heed_interrupts(command: list[str]) -> None:
    """Take SIGINT in ``prefect worker start``, which on SIGTERM sends itself that.

    A shell without job control starts what ends in `&` with SIGINT ignored, and so would the worker ignore its own.
    """
    if command[1:3] == ["worker", "start"] and signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def lengthen(command: list[str]) -> None:
    """Write FLOW/DEPLOYMENT for the short name in ``prefect deployment run NAME ...``, in place."""
    if command[1:3] == ["deployment", "run"] and len(command) > 3 and command[3] in NAMES:
        command[3] = f"{command[3]}/{command[3]}"
