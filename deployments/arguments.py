"""Arguments and options that several commands of `oapl` take, each with its help."""

from pathlib import Path
from typing import Annotated

import typer

from oapl_core.run_folder.run import Run

OpenedRun = Annotated[
    Run, typer.Argument(parser=Run.named, metavar="RUN", help="Run folder, or its name below data/runs.")
]
ExperimentFile = Annotated[
    Path, typer.Argument(metavar="EXPERIMENT.toml", help="Experiment file, see deployments/experiments/.")
]
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="For example seed=1 training.learning_rate=1e-6.")
]
Limit = Annotated[
    int | None,
    typer.Option(
        min=2, metavar="N", help="Rehearse: N problems of each file, short answers, few rounds, a name of its own."
    ),
]

# of a problem set, for `oapl problems` and `oapl evaluate`
SetFile = Annotated[
    Path | None, typer.Option("--from", metavar="PATH", help="The set's file or folder; unset: the hub.")
]
Revision = Annotated[str | None, typer.Option(metavar="COMMIT", help="Commit of the set's repository on the hub.")]
Split = Annotated[str | None, typer.Option(help="train, validation or heldout.")]
Release = Annotated[str | None, typer.Option(metavar="vN", help="Release of LiveCodeBench, cumulative.")]
Solutions = Annotated[
    Path | None, typer.Option(metavar="FILE.jsonl", help="Write the set's own solutions, for [warm_start].")
]
Window = Annotated[str | None, typer.Option(metavar="FIRST:END", help="Days of release; END is outside.")]
