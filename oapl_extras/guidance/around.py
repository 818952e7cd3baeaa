"""A Sampler around another, of which it takes everything but what is sampled. Reads and writes nothing."""

from pathlib import Path
from types import TracebackType
from typing import Self

from oapl_core.rollouts.requests import Sampler


class Around:
    """Part of a Sampler that is the same for all who stand between the asking and an engine."""

    def __init__(self, sampler: Sampler) -> None:
        """Stand around ``sampler``, which whoever made it starts and ends."""
        self._sampler = sampler
        self.name, self.logprobs_mode, self.dtype = sampler.name, sampler.logprobs_mode, sampler.dtype
        self.startup_s = sampler.startup_s

    def __enter__(self) -> Self:
        """Enter nothing: whoever made the sampler starts and ends it."""
        return self

    def __exit__(self, _kind: type[BaseException] | None, _e: BaseException | None, _t: TracebackType | None) -> None:
        """Leave the sampler to whoever made it."""

    def load(self, model_dir: Path) -> None:
        """Continue with the weights of ``model_dir``."""
        self._sampler.load(model_dir)
