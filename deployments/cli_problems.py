"""The commands about problem sets: `oapl problems` and `oapl prompt`; cli.py has the rest."""

from pathlib import Path
from typing import Annotated

import typer


def problems(
    name: Annotated[str | None, typer.Argument(metavar="[SET]", help="Unset: list the sets.")] = None,
    to: Annotated[Path | None, typer.Option(metavar="FILE", help=".jsonl, .jsonl.gz or .parquet to write.")] = None,
    source: Annotated[
        Path | None, typer.Option("--from", metavar="PATH", help="File or folder; unset: the hub.")
    ] = None,
    revision: Annotated[str | None, typer.Option(metavar="COMMIT", help="Of the set's repository on the hub.")] = None,
    split: Annotated[str | None, typer.Option(help="train, validation or heldout.")] = None,
    release: Annotated[str | None, typer.Option(metavar="vN", help="LiveCodeBench's, cumulative.")] = None,
    window: Annotated[str | None, typer.Option(metavar="FIRST:END", help="Days; END is outside.")] = None,
    faulty: Annotated[str, typer.Option(help="Problems known to be faulty: keep, drop or only.")] = "keep",
    minimum_tests: Annotated[int, typer.Option(min=1, help="Programs with fewer are dropped.")] = 1,
    longest_tests: Annotated[int | None, typer.Option(min=1, help="Keep those with the longest inputs.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Run reference solutions, verify gold answers.")] = False,
    cpu_s: Annotated[float, typer.Option(help="With --check: CPU seconds for a test.")] = 12.0,
    against: Annotated[list[Path] | None, typer.Option(help="Drop what is in this set; again for more.")] = None,
    evaluation: Annotated[list[Path] | None, typer.Option(help="Drop what this set is contaminated by.")] = None,
    similarity: Annotated[float, typer.Option(min=0.5, max=1.0, help="From which on statements are the same.")] = 0.8,
    distinct: Annotated[
        bool | None, typer.Option(help="Whether a statement may come once only; unset: in training sets.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Stop after so many.")] = None,
) -> None:
    """Import a published problem set, or curate one of your own; say what was kept and dropped (data/README.md)."""
    from deployments import problem_sets

    if name is None:
        problem_sets.show_sets()
        return
    options = {
        "split": split,
        "window": window,
        "faulty": faulty,
        "minimum_tests": minimum_tests,
        "longest_tests": longest_tests,
        "similarity": similarity,
        "distinct": distinct,
        "limit": limit,
    }
    checking = problem_sets.Checking(check, cpu_s, tuple(against or ()), tuple(evaluation or ()))
    problem_sets.import_problems(name, to, problem_sets.Place(source, revision, release), checking, options)


def prompt(
    name: Annotated[str, typer.Argument(metavar="SET", help="File of a problem set, or a set of `oapl problems`.")],
    source: Annotated[
        Path | None, typer.Option("--from", metavar="PATH", help="With the name of a set: its file.")
    ] = None,
    style: Annotated[str, typer.Option(help="plain, deepcoder, livecodebench or matharena.")] = "deepcoder",
    show: Annotated[int, typer.Option(min=1, help="How many to print.")] = 1,
    model: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Through this model's chat template, as it is sampled from.")
    ] = None,
    thinking: Annotated[bool | None, typer.Option(help="With --model: its template's enable_thinking.")] = None,
) -> None:
    """Print what a model is given for the first problems of a set."""
    from deployments.problem_sets import show_prompts

    show_prompts(name, source, style, show, model, thinking)
