"""What a worker of pytest-xdist runs as one piece: a file, or all files that share something slow to make."""

from functools import cache
from pathlib import Path

from xdist.scheduler import LoadFileScheduling

ROOT = Path(__file__).resolve().parent.parent

FOLDERS = (
    "tests/architecture/",  # a syntax tree of every file
    "tests/core/training/",  # a process that has imported DeepSpeed, and a trained round
)
WORDS = {
    'usefixtures("prefect")': "prefect",  # a server that takes twenty seconds to start
    "train_in_a_process(": "tests/core/training/",
}


@cache
def piece(file: str) -> str:
    """The name of the piece to which a file, relative to the checkout, belongs."""
    for folder in FOLDERS:
        if file.startswith(folder):
            return folder
    text = (ROOT / file).read_text()
    return next((name for word, name in WORDS.items() if word in text), file)


class Sharing(LoadFileScheduling):  # type: ignore[misc]  # it has no types
    """Gives the next piece to the worker that has least left to do."""

    def _split_scope(self, nodeid: str) -> str:
        return piece(super()._split_scope(nodeid))
