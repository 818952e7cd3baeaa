"""`oapl fetch`: a run folder made of its mirror."""

from pathlib import Path
from typing import Annotated

import typer

from deployments.terminal import tell
from oapl_core.run_folder.lock import hold
from oapl_extras.remote.mirror import Mirror
from oapl_extras.remote.mirroring import fetch_into


def fetch(
    url: Annotated[str, typer.Argument(metavar="URL", help="The run's folder below the `mirror` of its experiment.")],
    folder: Annotated[
        Path | None, typer.Argument(metavar="[DIR]", help="Run folder to make; unset: data/runs/<end of URL>.")
    ] = None,
) -> None:
    """Fetch a run from its mirror, so that `oapl run` continues it here."""
    mirror = Mirror(url, tell=tell)
    root = folder or Path("data/runs") / mirror.name
    with hold(root):  # also a folder that does not exist yet: two fetches into one must not mix
        fetch_into(mirror, root, tell)
