"""The card's raw file: a line of JSON for each measurement, appended whole, never rewritten."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def read(path: Path) -> dict[str, dict[str, Any]]:
    """The last line of each key; a line that was cut by a kill is none."""
    found = {}
    for line in path.read_bytes().split(b"\n")[:-1] if path.is_file() else []:
        row = json.loads(line)
        found[row["key"]] = row
    return found


def append(path: Path, row: Mapping[str, Any]) -> None:
    """Add a line, and wait until it is on the disk; the rest of a line that was cut goes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    with os.fdopen(descriptor, "r+b") as file:
        whole = file.read()
        file.truncate(whole.rfind(b"\n") + 1)
        file.seek(0, os.SEEK_END)
        file.write(json.dumps(dict(row)).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
