"""Figures of reports are drawn once for the same numbers: most reports of the tests are about the same few runs."""

import pickle
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

DRAWN = {
    "training": ("draw_training",),
    "heldout": ("draw_pass_at_k", "draw_samples_spent"),
    "rollouts": ("draw_dropped",),
}
"""Functions that a module of ``oapl_core.reports.sections`` draws with."""


def once(draw: Callable[..., None], known: dict[bytes, bytes]) -> Callable[..., None]:
    """The same function, which copies the file that the same numbers gave: the same numbers give the same bytes."""

    def drawn(path: Path, *numbers: Any) -> None:
        asked = pickle.dumps(numbers)
        if asked in known:
            path.write_bytes(known[asked])
            return
        draw(path, *numbers)
        known[asked] = path.read_bytes()

    return drawn


@contextmanager
def drawn_once() -> Iterator[None]:
    """For the sections that tests have imported."""
    with pytest.MonkeyPatch.context() as patch:
        for section, names in DRAWN.items():
            module = sys.modules.get(f"oapl_core.reports.sections.{section}")
            for name in names if module else ():
                patch.setattr(module, name, once(getattr(module, name), {}))
        yield
