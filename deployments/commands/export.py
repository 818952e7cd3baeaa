"""`oapl export`: a round's judged rollouts in the OAPL authors' schema."""

from pathlib import Path
from typing import Annotated

import typer

from deployments.arguments import OpenedRun
from deployments.terminal import tell
from oapl_core.launch import run_stage
from oapl_core.run_folder.lock import hold


def export(
    run: OpenedRun,
    destination: Annotated[Path, typer.Argument(metavar="FILE", help="A .parquet, or a .jsonl for chat messages.")],
    number: Annotated[int, typer.Option("--round", help="Round, from 0.")] = 0,
) -> None:
    """Write a round's judged rollouts in the OAPL authors' schema, which verl-style trainers read, or as messages."""
    with hold(run.root):
        run_stage(run, "exchange.export", ["--round", str(number), "--to", str(destination)], on_progress=tell)
