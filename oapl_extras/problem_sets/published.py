"""Published sets for the core: checked, fetched and written by name (oapl_core/problems/published.py)."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from oapl_core.progress import say
from oapl_core.settings.evaluation_folder import SetConfig
from oapl_extras.problem_sets.import_set import Choice, import_set, window
from oapl_extras.problem_sets.sources import fetch, local_files, released_files, source, sources


class Published:
    """Sets of data/sources.toml, of installed packages, and readers of a person's own by ``module:function``."""

    def check(self, wanted: SetConfig) -> None:
        """Look names up, without the network.

        Raises:
            ConfigError: no such set, release or window.
        """
        assert wanted.name is not None
        released_files(source(wanted.name), wanted.release)
        window(wanted.window)

    def split(self, name: str) -> str:
        """Return the split that a set is meant for."""
        return source(name).split

    def files(self, wanted: SetConfig) -> list[Path]:
        """Return the files of a set, fetched from the hub unless ``wanted.path`` has them."""
        assert wanted.name is not None
        found = source(wanted.name)
        patterns, _ = released_files(found, wanted.release)
        return local_files(wanted.path or fetch(found, patterns, wanted.revision), patterns)

    def write(self, wanted: SetConfig, files: list[Path], split: str, target: Path) -> tuple[int, dict[str, Any]]:
        """Write the set as it was published to ``target``; returns its rows and its record of origin."""
        assert wanted.name is not None
        found = source(wanted.name)
        # a benchmark is asked as it was published: what is twice in it is asked twice
        choice = Choice(split, window(wanted.window), wanted.faulty, distinct=False, limit=wanted.limit)
        tally = import_set(found, files, target, choice, tell=say)
        # an import leaves its record beside the file; here the ledger has it
        target.with_name(f"{target.name}.origin.json").unlink(missing_ok=True)
        return tally.kept, {
            "set": found.name,
            "hub": found.hub,
            "revision": None if wanted.path else wanted.revision or found.revision,
            "licence": found.licence,
            "choice": asdict(choice),
            "read": tally.read,
            "dropped": dict(tally.dropped),
            "noted": dict(tally.noted),
        }

    def licences(self) -> dict[str, str]:
        """Return the licence of each set."""
        return {name: found.licence for name, found in sources().items()}
