"""`oapl import`: rollouts of others become a round of a run."""

from pathlib import Path
from typing import Annotated

import typer

from deployments.arguments import ExperimentFile
from deployments.terminal import tell
from oapl_core.errors import ConfigError
from oapl_core.launch import run_stage
from oapl_core.model_files.model_hub import data_files
from oapl_core.run_folder.lock import hold
from oapl_core.run_folder.opening import check, check_disk
from oapl_core.run_folder.run import Run
from oapl_core.settings.experiment_file import applied, load_experiment, parse_as
from oapl_extras.exchange.import_source import ImportConfig

_OF_SOURCE = "source."


def import_(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE", help="Parquet, .jsonl or .jsonl.gz file, folder, or hub:org/name@COMMIT[:FILE]."
        ),
    ],
    experiment: ExperimentFile,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...",
            help="Settings of the experiment, or of the source: source.format=oapl (the authors' schema), verl, "
            "prime-rl, open-instruct, trl or messages, source.temperature, source.end_token=true, and of trl "
            "source.reward=COLUMN=WEIGHT,...",
        ),
    ] = None,
    number: Annotated[int, typer.Option("--round", help="Round whose rollouts they become, from 0.")] = 0,
) -> None:
    """Take rollouts of others as a round's; `oapl run EXPERIMENT` continues from there (docs/extras/exchange.md)."""
    # `reward` and `sampling` are tables of the experiment, so words about the source have a table of their own
    words = overrides or []
    of_source = [word for word in words if word.startswith(_OF_SOURCE)]
    stated = applied(word.removeprefix(_OF_SOURCE) for word in of_source)
    said = parse_as(ImportConfig, {**stated, "imported": source}, "oapl import: source")
    if said.judged:
        raise ConfigError('source.judged: a round judges what it imports itself, rows = {imported = "FILE"}')
    config = load_experiment(experiment, [word for word in words if word not in of_source])
    check(config)
    check_disk(Run(config.run_dir, config))  # before the run folder is made: a refused import leaves nothing
    path = data_files(source) if said.is_on_hub else Path(source)
    with hold(config.run_dir):
        run = Run.create(config)
        arguments = ["--round", str(number), "--source", str(path), "--form", said.format]
        arguments += ["--reward", said.reward] if said.reward else []
        arguments += ["--temperature", str(said.temperature)]
        arguments += ["--end_token"] * said.end_token
        run_stage(run, str(said.verb), arguments, on_progress=tell)
        tell(f"{run.root}: `oapl run {experiment}` continues with these rollouts")
