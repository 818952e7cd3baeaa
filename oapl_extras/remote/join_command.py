"""`oapl join`: a machine that does not see a run's folder samples parts of its rounds."""

from pathlib import Path
from typing import Annotated

import typer

from deployments.terminal import tell
from oapl_core.errors import Interrupted
from oapl_core.run_folder.lock import hold


def join(
    url: Annotated[str, typer.Argument(metavar="URL", help="The run's folder below the `mirror` of its experiment.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="How fast the engine is here: engine.replicas=4"),
    ] = None,
    folder: Annotated[Path, typer.Option("--to", metavar="DIR", help="Folder to work in.")] = Path("data/joined"),
    idle: Annotated[float, typer.Option(help="Minutes without anything to sample, after which it ends.")] = 10.0,
) -> None:
    """Sample parts of a run's rounds on a machine that does not see its folder, through its mirror.

    For runs with `fleet.rollouts.through = "mirror"`. It may end at any time: what it has finished is kept.
    """
    from oapl_extras.remote.joining import serve

    with hold(folder):
        try:
            serve(url, folder, tell, overrides or [], idle * 60)
        except KeyboardInterrupt:
            raise Interrupted("interrupted; finished answers are in the mirror, others take the parts") from None
