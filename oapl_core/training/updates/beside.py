"""Interface of what a trainer keeps from step to step beside the optimiser's numbers. A state has a folder for each."""

from pathlib import Path
from typing import Protocol


class Beside(Protocol):
    """Numbers that the next step needs. ``TrainingEngine.beside`` has them by name."""

    def save(self, folder: Path, rank: int, ranks: int) -> dict[str, str]:
        """Write this rank's share into ``folder``, which need not be there; returns the SHA-256 of each file."""

    def load(self, folder: Path) -> None:
        """Continue from ``folder``; where a state has none, begin with the weights that are loaded by now."""
