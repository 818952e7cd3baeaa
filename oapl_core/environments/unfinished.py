"""A trajectory that was begun and is not over, and the bytes from which another process continues it. Pure."""

import pickle
import time
from dataclasses import dataclass, field, replace
from typing import Any

from oapl_core.environments.stepping import Playing
from oapl_core.rollouts.requests import Request
from oapl_core.seeds import derive_seed

_KEPT = "response_ids logprobs mask starts hashes calls rewards text is_asking".split()


@dataclass
class Unfinished:
    """A trajectory that was begun and is not over."""

    request: Request
    playing: Playing
    response_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    mask: list[bool] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    hashes: list[int] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    spent_s: float = 0.0
    """Wall time in earlier processes."""
    text: str = ""
    """Text of the last turn."""
    is_asking: bool = False
    """Whether the environment has not answered the last turn."""
    began_s: float = field(default_factory=time.monotonic)

    @property
    def left(self) -> int:
        """Tokens that it may still have."""
        return self.request.max_tokens - len(self.response_ids)

    @property
    def wall_s(self) -> float:
        """Seconds since it began."""
        return self.spent_s + time.monotonic() - self.began_s

    def next_turn(self, longest: int | None) -> Request:
        """Return the request for the next turn."""
        request, turn = self.request, len(self.starts)
        seed = derive_seed(request.seed, "turn", turn) if turn else request.seed
        return replace(
            request,
            key=f"{request.key}/t{turn}",
            prompt_ids=[*request.prompt_ids, *self.response_ids],
            seed=seed,
            max_tokens=min(self.left, longest or self.left),
        )

    def state(self) -> bytes:
        """Return everything that cannot be made again from the request."""
        kept = {name: getattr(self, name) for name in _KEPT}
        return pickle.dumps({**kept, "spent_s": self.wall_s, "environment": self.playing.kept})

    def restore(self, state: bytes) -> None:
        """Continue from the kept ``state``."""
        kept = pickle.loads(state)
        self.playing.kept = kept.pop("environment")
        self.__dict__.update(kept)
