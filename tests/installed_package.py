"""A package that is installed for the length of a test: its module, and the names that it gives to oapl_core."""

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from oapl_core import plugins


@contextmanager
def installed(folder: Path, source: str, points: str) -> Iterator[None]:
    """Install the module ``shiny`` of ``source``; ``points`` is the text of entry_points.txt."""
    (folder / "shiny.py").write_text(source)
    info = folder / "shiny-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: shiny\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(points)
    sys.path.insert(0, str(folder))
    _forget()
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        _forget()
        sys.modules.pop("shiny", None)


def _forget() -> None:
    importlib.invalidate_caches()
    plugins._installed.cache_clear()
