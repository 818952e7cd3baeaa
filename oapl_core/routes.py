"""Routes: the experts that an engine sent each token to, in every layer; an optional column of tokens.

A token's numbers are experts, [layers, top_k]. Layers without experts have zeros.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

from oapl_core.token_columns import TokenColumn

_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
"""Names in a config.json; families differ."""


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
        experts = next(filter(None, map(value, _EXPERTS)), None)
        values = [value("num_hidden_layers"), value("num_experts_per_tok"), experts]
        numbers = [number for number in values if isinstance(number, int) and number > 0]
        return cls(*numbers) if len(numbers) == len(values) else None

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
