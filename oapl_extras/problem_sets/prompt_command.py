"""`oapl prompt`: what a model is given for the problems of a set."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from deployments.terminal import tell
from oapl_core.model_files.hub_names import HUB, hub_model
from oapl_core.model_files.model_hub import fetched
from oapl_core.plugins import resolve
from oapl_core.problems.encoding import load_encoder
from oapl_core.problems.problem_set import SPLITS, read_problem_set
from oapl_core.problems.prompts import conversation
from oapl_core.problems.raw_rows import raw_rows
from oapl_core.problems.run_problems import problem_sets
from oapl_core.run_folder.resolving import resolved
from oapl_core.settings.experiment_file import applied, load_experiment, parse_as
from oapl_core.settings.problems import PromptConfig
from oapl_extras.problem_sets.curation import Tally
from oapl_extras.problem_sets.import_set import converted
from oapl_extras.problem_sets.problems_command import files_of
from oapl_extras.problem_sets.sources import source


class ShownConfig(PromptConfig):
    """Settings of the prompts to show, KEY=VALUE on the command line."""

    path: Path | None = None
    """File or folder of the set; unset: the hub."""


def prompt(
    name: Annotated[
        str,
        typer.Argument(
            metavar="SET", help="File of a problem set, a set of `oapl problems`, or an experiment (.toml) and its own."
        ),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...",
            help="path=PATH of the set's file or folder, prompt_style=plain, template=FILE.jinja, "
            "system, examples=FILE.jsonl; with --model chat, thinking.",
        ),
    ] = None,
    show: Annotated[int, typer.Option(min=1, help="Number of prompts to print.")] = 1,
    model: Annotated[Path | None, typer.Option(metavar="DIR", help="Model whose tokens to show.")] = None,
) -> None:
    """Print what a model is given for the first problems of a set, and what ends its answers."""
    settings = applied(overrides)
    stop: tuple[str, ...] = ()
    own: Iterator[Mapping[str, Any]] | None = None
    if name.endswith(".toml"):
        experiment = load_experiment(Path(name))
        experiment = resolved(experiment, experiment.run_dir)
        own, model = problem_sets(experiment.problems).problems(["train"]), model or experiment.model
        stop = experiment.sampling.stop
        settings = experiment.problems.model_dump(include=set(PromptConfig.model_fields)) | settings
    config = parse_as(ShownConfig, settings, "oapl prompt")
    if on_hub := hub_model(model):
        model = fetched(on_hub, tell)
    encode = load_encoder(model, config.thinking, config.chat) if model else None
    words = f"style {config.prompt_style}" if config.template is None else f"template {config.template.file}"
    for problem, _ in zip(own or _problems(name, config.path), range(show), strict=False):
        turns = conversation(problem, config)
        tell(f"--- {problem['problem_id']} ({problem['kind']}, {words})")
        if encode:
            text, ids = encode(turns)
            tell(f"{text}\n--- {len(ids)} tokens; {encode.form}")
            tell(f"--- an answer ends with {' or '.join(map(repr, encode.ends(stop)))}")
        else:
            for turn in turns:
                tell(f"[{turn['role']}]\n{turn['content']}")


def _problems(name: str, path: Path | None) -> Iterator[Mapping[str, Any]]:
    is_on_hub = name.startswith(HUB)
    file = resolve("problem_rows", "hub")(Path(name)) if is_on_hub else Path(name)
    if path is None and (is_on_hub or file.suffix):
        # a file of ours has one split, which its rows name; one written by hand may name none
        split = next((row.get("split") for _, row in raw_rows(file) if isinstance(row, dict)), None)
        yield from read_problem_set(file, split if split in SPLITS else "heldout")
        return
    problem_set = source(name)
    files, _ = files_of(problem_set, path)
    for imported in converted(problem_set, files, problem_set.split, Tally()):
        yield imported.problem
