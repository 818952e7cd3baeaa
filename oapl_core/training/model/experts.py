"""Mixture of experts: which blocks a model has, and its routers, by one rule for every family.

A block is a module with a child `experts`; its router is its child `gate` or `router`, whose weights choose the experts
of a token. transformers adds an auxiliary loss, which balances the experts' load, to its own loss alone. Log-probs here
come from hidden states, so no objective has it. Corrections of the choice that no gradient reaches (DeepSeek-V3's
`e_score_correction_bias`) stay as they were.

Rollout routing replay (R3, arXiv 2510.11370): where the engine's routes are stored, tokens are sent to the experts that
the engine chose. An engine that rounds otherwise chooses others now and then, and their answers are no rounding. What
an expert's output is multiplied with is still computed by the router that is trained, so it gets its gradient.
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

_EXPERTS, _ROUTERS = "experts", ("gate", "router")


def expert_blocks(model: nn.Module) -> list[nn.Module]:
    """Return the modules that hold experts and the router that chooses among them."""
    return [module for module in model.modules() if _EXPERTS in dict(module.named_children())]


def routers(model: nn.Module) -> list[nn.Module]:
    """Return the modules that choose the experts of a token."""
    children = [child for block in expert_blocks(model) for child in block.named_children()]
    return [child for name, child in children if name in _ROUTERS]


def freeze_routers(model: Any) -> None:
    """Leave the choice of experts as it is; everything else of ``model`` stays trained.

    Raises:
        ConfigError: it has no experts, or not every block has a router that is found.
    """
    router_modules = routers(model)
    if not router_modules or len(router_modules) < len(expert_blocks(model)):
        raise ConfigError(
            f"training.router = 'frozen': {type(model).__name__} has {len(expert_blocks(model))} blocks of experts and "
            f"{len(router_modules)} routers ({' or '.join(_ROUTERS)}); leave the setting out"
        )
    for router in router_modules:
        router.requires_grad_(False)


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
                f"experts and {len(router_modules)} routers ({' or '.join(_ROUTERS)}) to replay them in; sample without"
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
