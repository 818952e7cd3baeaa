"""`oapl fork`: another run that shares what came before a round and has other settings from there on."""

from typing import Annotated

import typer

from deployments.arguments import OpenedRun, Overrides
from deployments.terminal import tell
from oapl_core.changing import forking
from oapl_core.files import readable_size


def fork(
    run: OpenedRun,
    name: Annotated[str, typer.Argument(metavar="NEWNAME", help="Name of the new run.")],
    overrides: Overrides = None,
    number: Annotated[int, typer.Option("--round", help="Round where the new run begins, from 0.")] = 0,
    from_stage: Annotated[
        str | None, typer.Option(metavar="STAGE", help="First stage of that round that it does; unset: all.")
    ] = None,
) -> None:
    """Make another run that shares what came before a round, without copies, and has other settings from there on."""
    made = forking.fork(run, name, number, overrides or [], from_stage)
    size = readable_size(made.shared_bytes)
    tell(f"{made.run.root}: shares {made.shared_files} files ({size}) with {run.root}, copied none")
    for change in made.run.ledger.forks()[0].changes:
        tell(f"  {change}")
    tell(f"`oapl run {made.run.root}` continues with {made.run.ledger.forks()[0].stage} of round {number}")
