"""``python -m deployments.serving [OPTION]...``: `prefect server start` without a freeze of Prefect 3.7.

Reads and writes what that command does. A server of Prefect 3.7 on SQLite learns of a written automation in a listener.
It waits there, on the thread of the event loop, for a lock. Whoever has the lock may need that thread: then the server
is silent for ever, health and all (PrefectHQ/prefect, issue 23055). A mended Prefect (pull request 23056, in 3.8.6)
does not wait there; nothing of this changes it. Remove the module with the last lock on an older one.
"""

import asyncio
import logging
import sys
from collections.abc import Coroutine
from typing import Any

_updates: set[asyncio.Task[None]] = set()
"""Tasks that run; a loop alone would forget them."""


def main(options: list[str]) -> None:
    """Start a server in the foreground, with the options of `prefect server start`."""
    if {"--background", "-b"} & {*options}:
        sys.exit("error: --background starts a server without the mend of its freeze; put & behind the command instead")
    mend()
    from prefect.cli import app

    sys.argv = ["prefect", "server", "start", *options]
    app()


def mend() -> None:
    """Make the listener give its update to the loop that runs; without a running loop it waits as before."""
    from prefect.server.events.models import automations

    wait = getattr(automations, "run_coro_as_sync", None)
    if wait is None:  # a later Prefect
        return

    def schedule(update: Coroutine[Any, Any, None]) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            wait(update)
            return
        task = loop.create_task(update)
        _updates.add(task)
        task.add_done_callback(_ended)

    vars(automations)["run_coro_as_sync"] = schedule


def _ended(task: asyncio.Task[None]) -> None:
    _updates.discard(task)
    if not task.cancelled() and (error := task.exception()):
        # it is stored all the same; the server reads it again within seconds
        logger = logging.getLogger("prefect.server")
        logger.error("an automation that was written is not in memory yet", exc_info=error)


if __name__ == "__main__":
    main(sys.argv[1:])
