"""`oapl import`: rollouts of others become a round of a run."""

from pathlib import Path
from typing import Annotated

import typer

from deployments.arguments import ExperimentFile, Overrides
from deployments.terminal import tell
from oapl_core.errors import ConfigError
from oapl_core.launch import run_stage
from oapl_core.model_files.model_hub import data_files
from oapl_core.run_folder.lock import hold
from oapl_core.run_folder.opening import check, check_disk
from oapl_core.run_folder.run import Run
from oapl_core.settings.experiment_file import load_experiment
from oapl_extras.exchange.formats import FORMATS


def import_(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE", help="Parquet, .jsonl or .jsonl.gz file, folder, or hub:org/name@COMMIT[:FILE]."
        ),
    ],
    experiment: ExperimentFile,
    overrides: Overrides = None,
    number: Annotated[int, typer.Option("--round", help="Round whose rollouts they become, from 0.")] = 0,
    form: Annotated[
        str,
        typer.Option("--format", help="oapl (the authors' schema), verl, prime-rl, open-instruct, trl or messages."),
    ] = "oapl",
    reward: Annotated[
        str | None, typer.Option(metavar="COLUMN=WEIGHT,...", help="Reward columns of trl; unset: all numbers.")
    ] = None,
    temperature: Annotated[
        float, typer.Option(help="Temperature of rollouts that do not say it.", min=0.01, max=10.0)
    ] = 1.0,
    end_token: Annotated[
        bool, typer.Option("--end-token", help="Add the end token to texts that come without token ids.")
    ] = False,
) -> None:
    """Take rollouts of another project as a round's; `oapl run EXPERIMENT` continues from there (docs/data.md)."""
    if form not in FORMATS:
        raise ConfigError(f"--format {form}: choose one of {', '.join(FORMATS)}")
    config = load_experiment(experiment, overrides or [])
    check(config)
    check_disk(Run(config.run_dir, config))  # before the run folder is made: a refused import leaves nothing
    path = data_files(source) if source.startswith("hub:") else Path(source)
    with hold(config.run_dir):
        run = Run.create(config)
        arguments = ["--round", str(number), "--source", str(path), "--form", form]
        arguments += ["--reward", reward] if reward else []
        arguments += ["--temperature", str(temperature)]
        arguments += ["--end_token"] * end_token
        run_stage(run, "oapl_extras.exchange.import_rollouts", arguments, on_progress=tell)
        tell(f"{run.root}: `oapl run {experiment}` continues with these rollouts")
