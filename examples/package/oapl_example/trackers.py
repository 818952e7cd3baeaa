"""A tracker that writes a file of one's own form: ``training.trackers = ["lines"]``."""

import json
from collections.abc import Mapping

from oapl_core.tracking.doors import Door, Opening


def lines(opening: Opening) -> Door:
    """Append each row to logs/lines.jsonl of the run, as one JSON line.

    Args:
        opening: the run folder, its identity and its settings.

    Returns:
        The opened file: a function that takes a row, and one that closes it.
    """
    file = (opening.root / "logs" / "lines.jsonl").open("a", encoding="utf-8")

    def log(axis: str, step: int, values: Mapping[str, float]) -> None:
        file.write(json.dumps({axis: step, **values}) + "\n")
        # OAPL notes the row as sent when this returns, so it must be there if the process is killed next
        file.flush()

    return Door(log, file.close)
