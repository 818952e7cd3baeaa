"""Figures as lines of JSON, for whatever reads a growing file: ``[training] trackers = ["json-lines"]``."""

import json
import os
from collections.abc import Mapping
from pathlib import Path

from oapl_extras.trackers.doors import Door, Opening

FILE = "OAPL_JSON_LINES"
"""Variable that names one file for all runs; unset: logs/figures.jsonl of each run."""


def json_lines(opening: Opening) -> Door:
    """Open the file and append to it: the settings once, then one line for each step of an axis.

    Args:
        opening: the run; every line has its identity, so that runs can share a file.

    Returns:
        The door. OAPL calls it from one thread, sends each row once, and sends later what was not taken.
    """
    path = Path(os.environ.get(FILE) or opening.root / "logs" / "figures.jsonl")
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.open("a", encoding="utf-8")

    def write(line: Mapping[str, object]) -> None:
        # flushed: a row that was logged must outlive this process, because it is not sent again
        print(json.dumps({"run": opening.identity, **line}), file=file, flush=True)

    def log(axis: str, step: int, values: Mapping[str, float]) -> None:
        write({"axis": axis, "step": step, "values": dict(values)})

    if opening.is_new:
        write({"name": opening.root.name, "settings": dict(opening.config)})
    return Door(log, file.close)
