"""`oapl figures`: the paper's figures from any number of runs, side by side, with the numbers behind them."""

from pathlib import Path
from typing import Annotated

import typer

from deployments.terminal import tell
from oapl_core.errors import ConfigError, DataError
from oapl_core.run_folder.run import Run
from oapl_extras.compare.side_by_side import write_figures
from oapl_extras.compare.side_tables import differing
from oapl_extras.compare.tracks import read_track


def figures(
    runs: Annotated[
        list[str], typer.Argument(metavar="[LABEL=]RUN...", help="Runs; several with one label are averaged.")
    ],
    to: Annotated[Path, typer.Option(metavar="DIR", help="Folder to write index.html, PNGs and CSVs in.")],
) -> None:
    """Draw runs side by side: pass@k, accuracy and entropy over training, accuracy against samples; finished or not."""
    if to.exists() and not to.is_dir():
        raise ConfigError(f"--to {to}: is a file; give a folder")
    named = [_named(word) for word in runs]
    # every run is read before anything is written: a broken one leaves no half-made page
    tracks = [read_track(run, label or run.config.name) for label, run in named]
    unlabelled = [track for track, (label, _) in zip(tracks, named, strict=True) if label is None]
    difference = differing(unlabelled)
    if difference is not None:
        raise ConfigError(f"{difference}; seeds of one setting share a line, so give each setting a label: LABEL=RUN")
    page = write_figures(tracks, to)
    for track in tracks:
        for text in track.missing:
            tell(f"missing: {text}")
    tell(f"figures: {page}")


def _named(word: str) -> tuple[str | None, Run]:
    """Split into label, if one is given, and run; a folder whose own name has a `=` is a run, not a label."""
    label, equals, name = word.partition("=")
    if not equals or Path(word).is_dir() or (Path("data/runs") / word).is_dir():
        return None, Run.named(word)
    if not label.strip() or not name.strip():
        raise ConfigError(f"{word!r}: write LABEL=RUN, or RUN alone")
    try:
        return label.strip(), Run.named(name)
    except DataError as error:
        raise DataError(f"{word}: {error}") from None
