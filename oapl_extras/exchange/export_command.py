"""`oapl export`: a round for trainers of other projects: all judged rollouts, or rows chosen by their rewards."""

import json
from pathlib import Path
from typing import Annotated

import typer

from deployments.arguments import OpenedRun
from deployments.terminal import tell
from oapl_core.errors import ConfigError
from oapl_core.launch import run_stage
from oapl_core.run_folder.lock import hold
from oapl_core.settings.experiment_file import applied, parse_as
from oapl_extras.exchange.chosen import KINDS, ExportChoice


def export(
    run: OpenedRun,
    destination: Annotated[Path, typer.Argument(metavar="FILE", help="File to write, .parquet or .jsonl.")],
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...",
            help="min_reward=0.8 of an answer or a chosen one (unset: of sft the correct ones), min_gap=0.5 of a pair, "
            "per_problem=2 answers or pairs at most (unset: of sft all, of preference one).",
        ),
    ] = None,
    kind: Annotated[
        str, typer.Option("--as", metavar="|".join(KINDS), help="Rows: every judged rollout, or chosen by reward.")
    ] = KINDS[0],
    number: Annotated[int, typer.Option("--round", help="Round, from 0.")] = 0,
) -> None:
    """Write a round for other trainers: its rollouts, or answers to imitate, pairs or problems by their rewards.

    Rollouts are in the OAPL authors' schema as .parquet, and chat messages as .jsonl.
    """
    if kind not in KINDS:
        raise ConfigError(f"--as {kind}: is none of {', '.join(KINDS)}")
    choice = parse_as(ExportChoice, applied(settings), "oapl export")
    choice.check(kind)
    options = ["--kind", kind, "--choice", json.dumps(choice.model_dump(exclude_unset=True))]
    with hold(run.root):
        words = ["--round", str(number), "--to", str(destination), *options]
        run_stage(run, "oapl_extras.exchange.export", words, on_progress=tell)
