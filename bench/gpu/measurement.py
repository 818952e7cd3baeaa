"""What the card measures: a key, what computes it, and how long it may take."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

PARTS = {  # seconds of the whole part
    "host": 60,
    "peaks": 30,
    "step": 430,
    "profile": 90,
    "zero3": 60,
    "output": 50,
    "stage": 290,
    "starts": 220,
    "kv": 140,
    "peer": 110,
}
"""Together under 25 minutes."""


@dataclass(frozen=True)
class Measurement:
    """One line of the raw file."""

    part: str
    name: str
    options: Mapping[str, Any]
    """What the part's function is given."""
    bound_s: float = 90.0
    """Then its process is ended."""
    process: str = ""
    """Measurements of one part and one such name, next to each other, share a process; those that change what the
    process computes with (compiled layers, other attention kernels) have one of their own."""
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def key(self) -> str:
        return f"{self.part} {self.name}"
