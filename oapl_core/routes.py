"""Routes: the experts that an engine sent each token to, in every layer; an optional column of tokens.

A token's numbers are experts, [layers, top_k]. Layers without experts have zeros.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

from oapl_core.model_files.model_folder import experts_of
from oapl_core.token_columns import TokenColumn


@dataclass(frozen=True)
class Routing(TokenColumn):
    """How many experts a model has, and how many a token is sent to."""

    name = "routes"
    models, lacks = "mixtures of experts", "has no experts"
    values = "the routes of each token through the experts of this model"
    reporter = "oapl_core.rollouts.told_routes:ToldRoutes"
    holder = "oapl_core.training.model.replayed_routes:RoutingReplay"

    layers: int
    """Layers, also those without experts."""
    top_k: int
    experts: int
    """Experts in a layer."""

    @classmethod
    def of(cls, value: Callable[[str], Any]) -> Self | None:
        """Derive the routing from values of a config.json; None where there are no experts."""
        layers, found = value("num_hidden_layers"), experts_of(value)
        return cls(layers, *found) if found and isinstance(layers, int) and layers > 0 else None

    @property
    def shape(self) -> tuple[int, ...]:
        """Layers and experts in each."""
        return self.layers, self.top_k

    @property
    def bound(self) -> int:
        """Experts in a layer."""
        return self.experts

    @property
    def told(self) -> str:
        """Line about where tokens go."""
        return f"tokens go to the experts that the engine chose, {self.top_k} in each layer that has some"
