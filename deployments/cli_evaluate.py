"""The command `oapl evaluate`; cli.py has the others."""

from pathlib import Path
from typing import Annotated

import typer


def evaluate(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[LABEL=]MODEL... [KEY=VALUE]...",
            help="A Hugging Face folder, RUN (its chosen epoch, else the last), RUN:base, RUN:round_00 or "
            "RUN:round_00/epoch_01; then settings such as engine.max_num_seqs=64.",
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option("--set", metavar="SET", help="A set of `oapl problems`, or a file.")
    ] = None,
    source: Annotated[
        Path | None, typer.Option("--from", metavar="PATH", help="The set's file; unset: the hub.")
    ] = None,
    revision: Annotated[str | None, typer.Option(metavar="COMMIT", help="Of the set's repository on the hub.")] = None,
    split: Annotated[str | None, typer.Option(help="train, validation or heldout.")] = None,
    release: Annotated[str | None, typer.Option(metavar="vN", help="LiveCodeBench's, cumulative.")] = None,
    window: Annotated[str | None, typer.Option(metavar="FIRST:END", help="Days; END is outside.")] = None,
    faulty: Annotated[str | None, typer.Option(help="Problems known to be faulty: keep, drop or only.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first so many problems.")] = None,
    style: Annotated[str | None, typer.Option(help="plain, deepcoder, livecodebench or matharena.")] = None,
    thinking: Annotated[bool | None, typer.Option(help="The chat template's enable_thinking.")] = None,
    samples: Annotated[int | None, typer.Option("-n", min=1, help="Answers to each problem.")] = None,
    ks: Annotated[str | None, typer.Option("-k", metavar="1,5,10", help="Of pass@k; unset: a curve up to n.")] = None,
    temperature: Annotated[float | None, typer.Option(min=0.0, help="Of sampling.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Nucleus.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Longest answer.")] = None,
    max_prompt_tokens: Annotated[int | None, typer.Option(min=1, help="Longer prompts are dropped.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Every random choice is derived from it.")] = None,
    card: Annotated[
        Path | None, typer.Option(metavar="card.json", help="Repeat this evaluation and compare; 1 if they disagree.")
    ] = None,
    to: Annotated[Path | None, typer.Option(metavar="DIR", help="Unset: below data/evaluations.")] = None,
) -> None:
    """Measure checkpoints on a problem set and write the evaluation card; the same command again continues."""
    from deployments import evaluating

    problems = {
        "name": name,
        "path": source,
        "revision": revision,
        "split": split,
        "release": release,
        "window": window,
        "faulty": faulty,
        "limit": limit,
    }
    asked = {
        "prompt_style": style,
        "thinking": thinking,
        "samples": samples,
        "ks": ks,
        "temperature": temperature,
        "top_p": top_p,
        "max_tokens": max_tokens,
        "max_prompt_tokens": max_prompt_tokens,
        "seed": seed,
    }
    raise typer.Exit(evaluating.evaluate(models or [], problems, asked, card, to))
