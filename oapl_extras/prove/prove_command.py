"""`oapl prove`: does this machine sample, score and train rightly, and how fast; a card to send with a question."""

import shutil
from pathlib import Path
from typing import Annotated

import typer

from deployments.arguments import Overrides
from deployments.terminal import console, tell
from oapl_core.temporary import temporary_folder


def prove(
    overrides: Overrides = None,
    to: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Keep card, logs and all else here; unset: the card alone."),
    ] = None,
    only: Annotated[list[str] | None, typer.Option(metavar="RUNG", help="Only this rung; again for more.")] = None,
) -> None:
    """Prove this machine rung by rung, from packages to two ranks: a line and a figure each, and a card."""
    from oapl_core.errors import ConfigError
    from oapl_extras.prove.ladder import Rung, climb
    from oapl_extras.prove.rungs import RUNGS

    if unknown := sorted(set(only or ()) - set(RUNGS)):
        raise ConfigError(f"--only {unknown[0]}: no such rung; there are {', '.join(RUNGS)}")
    on_gpu = shutil.which("nvidia-smi") is not None

    def show_rung(rung: Rung) -> None:
        colour, state = ("green", "ok") if rung.is_green else ("red", "fail")
        console.print(f"[{colour}]{state:<5}[/] {rung.name:<10} ", end="")
        console.print(f"{rung.line}  ({rung.seconds:.0f} s)", markup=False, soft_wrap=True)

    with temporary_folder() as scratch:
        folder = to or scratch
        rungs = climb(folder.resolve(), on_gpu, overrides or (), only or RUNGS, show_rung)
        if to is None:
            for name in ("card.json", "card.md"):
                shutil.copyfile(folder / name, Path(f"oapl-prove-{name}"))
    tell(f"card: {(to or Path()) / ('card.md' if to else 'oapl-prove-card.md')}")
    raise typer.Exit(int(not all(rung.is_green for rung in rungs)))
