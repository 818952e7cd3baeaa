"""Mixture of experts: which blocks a model has, and its routers, by one rule for every family.

A block is a module with a child `experts`; its router is its child `gate` or `router`, whose weights choose the experts
of a token. transformers adds an auxiliary loss, which balances the experts' load, to its own loss alone. Log-probs here
come from hidden states, so no objective has it. Corrections of the choice that no gradient reaches (DeepSeek-V3's
`e_score_correction_bias`) stay as they were.
"""

from typing import Any

from torch import nn

from oapl_core.errors import ConfigError
from oapl_core.training.ways import Way

_EXPERTS = "experts"
ROUTERS = ("gate", "router")
"""Names that a router may have in its block."""


class FrozenRouters(Way):
    """Routers that are not trained: `training.router` = 'frozen'."""

    def change(self, model: Any) -> None:
        """Leave the choice of experts as it is."""
        freeze_routers(model)


def expert_blocks(model: nn.Module) -> list[nn.Module]:
    """Return the modules that hold experts and the router that chooses among them."""
    return [module for module in model.modules() if _EXPERTS in dict(module.named_children())]


def routers(model: nn.Module) -> list[nn.Module]:
    """Return the modules that choose the experts of a token."""
    children = [child for block in expert_blocks(model) for child in block.named_children()]
    return [child for name, child in children if name in ROUTERS]


def freeze_routers(model: Any) -> None:
    """Leave the choice of experts as it is; everything else of ``model`` stays trained.

    Raises:
        ConfigError: it has no experts, or not every block has a router that is found.
    """
    router_modules = routers(model)
    if not router_modules or len(router_modules) < len(expert_blocks(model)):
        raise ConfigError(
            f"training.router = 'frozen': {type(model).__name__} has {len(expert_blocks(model))} blocks of experts and "
            f"{len(router_modules)} routers ({' or '.join(ROUTERS)}); leave the setting out"
        )
    for router in router_modules:
        router.requires_grad_(False)
