"""Arguments and options that several commands of `oapl` take, each with its help."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from oapl_core.errors import ConfigError
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
    "revision=problems.revision split=problems.split release=problems.release faulty=problems.faulty "
    "tasks=--harness=NAME:TASK,...",
    "plan": "model-parameters=estimate.model_parameters",
    "problems": "from=path revision release split window faulty minimum-tests longest-tests cpu-s similarity "
    "distinct limit",
    "prompt": "from=path style=prompt_style template system examples chat thinking",
    "gym": "size seed split",
    "import": "format=source.format reward=source.reward temperature=source.temperature "
    "end-token=source.end_token=true",
    "join": "idle",
    "status": "parts=--json",
    "rollouts": "problem=--where=\"problem_id='ID'\"",
    "push": "what epoch license data private=private=true",
    "verify": "write=--as=stored",
    "watch": "once=--every=0",
}
"""Options of releases 0.1.0 and 0.2.0 by command, with what is written instead; goes with release 0.4.0."""


def refuse_moved(command: str, words: Iterable[str]) -> None:
    """Refuse an option of the releases before. Raises ConfigError, one line that says what to write instead."""
    pairs = (pair.partition("=") for pair in _MOVED.get(command, "").split())
    keys = {name: key or name.replace("-", "_") for name, _, key in pairs}
    for option in (word.partition("=")[0] for word in words if word.startswith("-")):
        if key := keys.get(option.lstrip("-").removeprefix("no-")):
            new = key if "=" in key or key.startswith("-") else f"{key}=VALUE"
            raise ConfigError(f"{option}: is no option any more; write {new}")
