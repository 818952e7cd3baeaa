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

_MOVED = {
    "evaluate": "n=samples limit=problems.limit from=problems.path "
    "style=prompt_style thinking k=ks temperature top-p max-tokens max-prompt-tokens seed window=problems.window "
    "revision=problems.revision split=problems.split release=problems.release faulty=problems.faulty",
    "problems": "revision release split window faulty minimum-tests longest-tests cpu-s similarity distinct limit",
    "prompt": "style=prompt_style template system examples chat thinking",
    "gym": "size seed split",
    "import": "reward=source.reward temperature=source.temperature end-token=source.end_token=true",
    "push": "license data private=private=true",
}
"""Options of releases 0.1.0 and 0.2.0 that are settings now, by command; goes with release 0.4.0."""


def moved(command: str, option: str) -> str | None:
    """Return what to write instead of an option of the releases before; None: it was none."""
    if (command, option) == ("verify", "--write"):
        return "--as stored"
    pairs = (word.partition("=") for word in _MOVED.get(command, "").split())
    keys = {name: key or name.replace("-", "_") for name, _, key in pairs}
    key = keys.get(option.lstrip("-").removeprefix("no-")) if option.startswith("-") else None
    return f"{key}=VALUE" if key and "=" not in key else key
