"""`oapl figures`: the paper's figures from any number of runs, side by side, with the numbers behind them."""

from collections.abc import Sequence
from pathlib import Path

from deployments.run_names import open_run
from deployments.terminal import tell
from oapl_core.errors import ConfigError, DataError
from oapl_core.reports.side_by_side import differing, write_figures
from oapl_core.reports.tracks import read_track
from oapl_core.run_folder.run import Run


def draw(runs: Sequence[str], folder: Path) -> None:
    """Draw ``runs`` (each a run, or LABEL=RUN; without a label the name of its experiment) in ``folder``.

    Raises:
        ConfigError: a label is missing, or stands for different settings without a person having said so.
        DataError: a run does not exist, is broken, or none has anything to draw.
    """
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"--to {folder}: is a file; give a folder")
    named = [_named(word) for word in runs]
    tracks = [read_track(run, label or run.config.name) for label, run in named]
    unlabelled = [track for track, (label, _) in zip(tracks, named, strict=True) if label is None]
    difference = differing(unlabelled)
    if difference is not None:
        raise ConfigError(f"{difference}; seeds of one setting share a line, so give each setting a label: LABEL=RUN")
    page = write_figures(tracks, folder)
    for track in tracks:
        for text in track.missing:
            tell(f"missing: {text}")
    tell(f"figures: {page}")


def _named(word: str) -> tuple[str | None, Run]:
    """Label, if one is given, and run; a folder whose own name has a `=` is a run, not a label."""
    label, equals, name = word.partition("=")
    if not equals or Path(word).is_dir() or (Path("data/runs") / word).is_dir():
        return None, open_run(word)
    if not label.strip() or not name.strip():
        raise ConfigError(f"{word!r}: write LABEL=RUN, or RUN alone")
    try:
        return label.strip(), open_run(name)
    except DataError as error:
        raise DataError(f"{word}: {error}") from None
