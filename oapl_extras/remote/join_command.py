"""`oapl join`: a machine that does not see a run's folder samples parts of its rounds."""

from pathlib import Path
from typing import Annotated

import typer
from pydantic import NonNegativeFloat

from deployments.terminal import tell
from oapl_core.errors import Interrupted
from oapl_core.run_folder.lock import hold
from oapl_core.settings.experiment_file import applied, parse_as
from oapl_core.settings_group import Settings

_OURS = "idle="


class JoiningConfig(Settings):
    """Settings of this machine's part in a run, KEY=VALUE on the command line."""

    idle: NonNegativeFloat = 10.0
    """Minutes without anything to sample, after which it ends."""


def join(
    url: Annotated[str, typer.Argument(metavar="URL", help="The run's folder below the `mirror` of its experiment.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...",
            help="How fast the engine is here: engine.replicas=4; idle=10, minutes without anything to sample, after "
            "which it ends.",
        ),
    ] = None,
    folder: Annotated[Path, typer.Option("--to", metavar="DIR", help="Folder to work in.")] = Path("data/joined"),
) -> None:
    """Sample parts of a run's rounds on a machine that does not see its folder, through its mirror.

    For runs with `fleet.rollouts.through = "mirror"`. It may end at any time: what it has finished is kept.
    """
    from oapl_extras.remote.joining import serve

    words = overrides or []
    own = [word for word in words if word.startswith(_OURS)]
    config = parse_as(JoiningConfig, applied(own), "oapl join")
    of_engine = [word for word in words if word not in own]
    with hold(folder):
        try:
            serve(url, folder, tell, of_engine, config.idle * 60)
        except KeyboardInterrupt:
            raise Interrupted("interrupted; finished answers are in the mirror, others take the parts") from None
