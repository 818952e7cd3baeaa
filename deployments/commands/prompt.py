"""`oapl prompt`: what a model is given for the problems of a set."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from deployments.arguments import SetFile
from deployments.commands.problems import files_of
from deployments.terminal import tell
from oapl_core.errors import ConfigError
from oapl_core.importing.curation import Tally
from oapl_core.importing.import_set import converted
from oapl_core.importing.sources import source
from oapl_core.problems.prepare import load_encoder
from oapl_core.problems.problem_set import SPLITS, read_problem_set
from oapl_core.problems.prompts import STYLES, Style, messages
from oapl_core.problems.raw_rows import raw_rows


def prompt(
    name: Annotated[str, typer.Argument(metavar="SET", help="File of a problem set, or a set of `oapl problems`.")],
    path: SetFile = None,
    style: Annotated[str, typer.Option(help="plain, deepcoder, livecodebench or matharena.")] = "deepcoder",
    show: Annotated[int, typer.Option(min=1, help="How many to print.")] = 1,
    model: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Through this model's chat template, as it is sampled from.")
    ] = None,
    thinking: Annotated[bool | None, typer.Option(help="With --model: its template's enable_thinking.")] = None,
) -> None:
    """Print what a model is given for the first problems of a set."""
    if style not in STYLES:
        raise ConfigError(f"--style {style!r}: choose one of {', '.join(STYLES)}")
    chosen: Style = style  # type: ignore[assignment]
    encode = load_encoder(model, thinking) if model else None
    for problem, _ in zip(_problems(name, path), range(show), strict=False):
        conversation = messages(problem, chosen)
        tell(f"--- {problem['problem_id']} ({problem['kind']}, style {style})")
        if encode:
            text, ids = encode(conversation)
            tell(f"{text}\n--- {len(ids)} tokens")
        else:
            for turn in conversation:
                tell(f"[{turn['role']}]\n{turn['content']}")


def _problems(name: str, path: Path | None) -> Iterator[Mapping[str, Any]]:
    file = Path(name)
    if path is None and file.suffix:
        # a file of ours has one split, which its rows name; one written by hand may name none
        split = next((row.get("split") for _, row in raw_rows(file) if isinstance(row, dict)), None)
        yield from read_problem_set(file, split if split in SPLITS else "heldout")
        return
    found = source(name)
    files, _ = files_of(found, path)
    for imported in converted(found, files, found.split, Tally()):
        yield imported.problem
