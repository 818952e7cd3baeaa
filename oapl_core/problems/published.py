"""Published problem sets by name, as the core knows them: an extra imports them (kind ``problem_sets`` of plugins)."""

from pathlib import Path
from typing import Any, Protocol

from oapl_core import plugins
from oapl_core.settings.evaluation_folder import SetConfig


class PublishedSets(Protocol):
    """Problem sets of others, found by name."""

    def check(self, wanted: SetConfig) -> None:
        """Look names up, without the network. Raises ConfigError: no such set, release or window; one line."""

    def split(self, name: str) -> str:
        """Return the split that a set is meant for."""

    def files(self, wanted: SetConfig) -> list[Path]:
        """Return the files of a set, fetched from the hub unless ``wanted.path`` has them."""

    def write(self, wanted: SetConfig, files: list[Path], split: str, target: Path) -> tuple[int, dict[str, Any]]:
        """Write the set as it was published to ``target``; returns its rows and its record of origin."""

    def licences(self) -> dict[str, str]:
        """Return the licence of each set."""


def published_sets() -> PublishedSets:
    """Return the sets that can be named. Raises ImportError: the extra is not installed."""
    found: PublishedSets = plugins.resolve("problem_sets", "published")()
    return found
