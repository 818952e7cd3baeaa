"""`oapl push`: a checkpoint or the rollouts of a run, with a card, to the hub."""

import shutil
from typing import Annotated, Literal

import typer

from deployments.arguments import OpenedRun
from deployments.terminal import console, numbers_table, tell
from oapl_core.errors import ConfigError
from oapl_core.publishing.outgoing import Publication, checkpoint_of, model, rollouts
from oapl_core.run_folder.run import Run, parts_of


def push(
    run: OpenedRun,
    to: Annotated[str, typer.Option(metavar="ORG/NAME", help="Repository; made if it is not there.")],
    what: Annotated[
        Literal["model", "rollouts"], typer.Option(help="Content of the repository: a model, or rollouts.")
    ] = "model",
    number: Annotated[
        int | None, typer.Option("--round", help="From 0; unset: the chosen checkpoint, all rollouts.")
    ] = None,
    epoch: Annotated[
        int | None, typer.Option(help="Epoch of the model, from 1; unset: the chosen one, or the last.")
    ] = None,
    licence: Annotated[
        str | None, typer.Option("--license", help="Licence by the hub's name, for example apache-2.0.")
    ] = None,
    data: Annotated[
        str | None, typer.Option(metavar="ORG/NAME", help="Repository of the model's rollouts, for its card.")
    ] = None,
    private: Annotated[bool, typer.Option("--private", help="Make a new repository private.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show files and card, send nothing.")] = False,
) -> None:
    """Push a checkpoint, or rollouts as a data set, to the hub with a card; nothing local or secret goes along."""
    scratch = run.root / ".tmp-push"
    try:
        publication = _publication(run, what, number, epoch, licence, data)
        if dry_run:
            _show(publication, to)
            return
        from oapl_core.publishing.push import push as send

        commit = send(publication, to, private, tell)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    use = f'model = "{to}@{commit}"' if what == "model" else f"oapl import hub:{to}@{commit} EXPERIMENT.toml"
    tell(f"pushed to {to} at {commit}; others take it with: {use}")


def _publication(
    run: Run, what: str, number: int | None, epoch: int | None, licence: str | None, data: str | None
) -> Publication:
    if what == "model":
        return model(run, checkpoint_of(run, number, epoch), licence, data)
    if epoch is not None or data is not None:
        raise ConfigError("--epoch and --data are of a model; leave them out with --what rollouts")
    every = range(len(run.config.rounds)) if number is None else (number,)
    numbers = [n for n in every if parts_of(run.rollouts(n))]
    if not numbers:
        raise ConfigError(f"{run.root}: has no rollouts of {'any round' if number is None else f'round {number}'} yet")
    scratch = run.root / ".tmp-push"
    scratch.mkdir(exist_ok=True)
    return rollouts(run, numbers, scratch, licence)


def _show(publication: Publication, to: str) -> None:
    table = numbers_table("file", "bytes")
    for file in publication.files:
        table.add_row(file.name, f"{file.bytes:,}")
    console.print(table)
    tell(publication.card)
    tell(f"{publication.bytes:,} bytes would go to {to} ({publication.kind}); nothing was sent")
