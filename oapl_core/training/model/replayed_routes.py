"""Rollout routing replay (R3, arXiv 2510.11370): tokens are sent to the experts that the engine chose.

An engine that rounds otherwise chooses others now and then, and their answers are no rounding. What an expert's output
is multiplied with is still computed by the router that is trained, so it gets its gradient.
"""

import re
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from oapl_core.errors import ConfigError
from oapl_core.routes import Routing
from oapl_core.training.layouts.placing import sent
from oapl_core.training.model.experts import ROUTERS, expert_blocks, routers


class RoutingReplay:
    """Routers of a model that choose the experts which were stored for a token; else they choose as ever."""

    _route_NLK: Tensor | None = None
    """Stored experts of the N tokens that the model is given, by layer; below 0, or unset, the router chooses
    itself.
    """

    def __init__(self, model: nn.Module, routing: Routing) -> None:
        """Put the stored choice into the routers of ``model``, before anything else is put around them.

        Raises:
            ConfigError: no routers are found, or not one for each block of experts.
        """
        self._routing = routing
        router_modules, blocks = set(routers(model)), expert_blocks(model)
        if not router_modules or len(router_modules) < len(blocks):
            raise ConfigError(
                f"the rollouts have routes (sampling.routes), but {type(model).__name__} has {len(blocks)} blocks of "
                f"experts and {len(router_modules)} routers ({' or '.join(ROUTERS)}) to replay them in; sample without"
            )
        for name, module in model.named_modules():
            if module in router_modules:
                layer = re.search(r"\.(\d+)\.", name)
                assert layer, f"{name} is in no layer"
                module.forward = partial(self._route, module.forward, name, int(layer[1]))

    def hold(self, route_STLK: Tensor | None, is_token_ST: Tensor | None, device: torch.device | None = None) -> None:
        """Set the routes of the next forward pass on ``device``, and of its recomputation.

        ``is_token_ST`` marks the tokens of packed rows.
        """
        if route_STLK is not None:
            route_STLK = route_STLK.flatten(0, 1) if is_token_ST is None else route_STLK[is_token_ST]
            route_STLK = sent(route_STLK, device)
        self._route_NLK = route_STLK

    def _route(self, choose: Any, name: str, layer: int, *inputs: Any, **options: Any) -> Any:
        """Return the output of the router ``name``, as ``choose`` computes it, with the stored experts."""
        if self._route_NLK is None:
            return choose(*inputs, **options)
        choice = _Choice(self._route_NLK[:, layer].long(), self._routing)
        with choice:
            output = choose(*inputs, **options)
        if choice.times != 1:
            raise ConfigError(
                f"the rollouts have routes (sampling.routes), but {name} does not choose its {self._routing.top_k} of "
                f"{self._routing.experts} experts by one topk: they cannot be replayed; sample without"
            )
        return output


class _Choice(TorchFunctionMode):
    """Answers the one topk over all experts, whatever a router does before and after it, with stored ones."""

    def __init__(self, stored_TK: Tensor, routing: Routing) -> None:
        super().__init__()
        self._stored_TK, self._sizes, self.times = stored_TK, (routing.experts, routing.top_k), 0

    def __torch_function__(self, function: Any, _types: Any, inputs: Any = (), options: Any = None) -> Any:
        output = function(*inputs, **(options or {}))
        if getattr(function, "__name__", "") != "topk":
            return output
        scores = inputs[0] if inputs else options["input"]
        # others choose among groups of experts, or within each: DeepSeek's
        if scores.dim() != 2 or (scores.shape[1], output.indices.shape[1]) != self._sizes:
            return output
        self.times += 1
        chosen_TK = torch.where(self._stored_TK < 0, output.indices, self._stored_TK)
        return torch.return_types.topk((scores.gather(1, chosen_TK), chosen_TK))
