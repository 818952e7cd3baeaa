"""``oapl lengths RUN``: the length of answers by round; a function with typer's annotations is a command."""

from pathlib import Path
from typing import Annotated

import typer


def lengths(run: Annotated[Path, typer.Argument(metavar="RUN", help="The run's folder.")]) -> None:
    """Show the mean length of the answers of each round, in tokens."""
    import polars as pl

    for folder in sorted(run.glob("round_*/1_rollouts")):
        tokens = pl.scan_parquet(folder / "*.parquet").select(pl.col("response_ids").list.len().mean()).collect().item()
        typer.echo(f"{folder.parent.name}  {tokens:.1f}")
