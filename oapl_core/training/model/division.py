"""ZeRO 3 from the first byte on: each weight is sharded as it is read, as DeepSpeed's zero.Init shards a model.

The first rank reads the model's folder lazily. A weight that is stored in the type of training is not in memory before
its turn. The other ranks have a hollow model, of the same class and shapes but without memory. Weight by weight, all
get the first rank's and keep their shards. So no GPU ever holds the model, and one host at most. That host must convert
the folder's weights: experts are joined into one tensor, adapters are added in another type than the stored one.
Whatever DeepSpeed does after it, and what is exported, is the same as if each rank had loaded the model.
"""

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from oapl_core.training.model.experts import expert_blocks
from oapl_core.training.ways import Way

if TYPE_CHECKING:
    from oapl_core.training.engine import TrainingEngine


class Sharded(Way):
    """A shard of each weight on each rank: `training.zero_stage` = 3."""

    def change(self, model: Any) -> None:
        """Give a model that was read without its weights hollow ones."""
        if next(model.parameters()).is_meta:
            hollowed(model, getattr(torch, self.training.dtype))

    def shard(self, engine: "TrainingEngine", policy: nn.Module, deepspeed: Any, config: dict[str, Any]) -> None:
        """Shard ``policy`` over all ranks, before ``deepspeed`` (the package) makes an engine of it by ``config``."""
        divide(engine, policy, getattr(torch, self.training.dtype), deepspeed.zero, config)
        # Fetched whole. Experts: ranks whose tokens choose different ones would wait for each other's weights for
        # ever. Layers: DeepSpeed's hooks around each part of them cost more of the host than the layer does.
        leaves = {type(block) for block in (*expert_blocks(policy), *decoder_layers(policy))}
        if leaves:
            deepspeed.utils.set_z3_leaf_modules(policy, sorted(leaves, key=lambda kind: kind.__name__))


def decoder_layers(policy: nn.Module) -> list[nn.Module]:
    """Return the layers of a transformers model that support recomputation; an empty list for other models."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    return [module for module in policy.modules() if isinstance(module, GradientCheckpointingLayer)]


def hollowed(model: Any, dtype: torch.dtype) -> Any:
    """Return ``model`` with weights of ``dtype`` that have shapes but take no memory; tied ones stay one."""
    hollow: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, weight in module.named_parameters(recurse=False, remove_duplicate=False):
            # one number, seen from everywhere: adapters beside it lie on its device, which meta would not be
            made = torch.zeros((), dtype=dtype).expand(weight.shape)
            setattr(module, name, hollow.setdefault(id(weight), nn.Parameter(made, weight.requires_grad)))
    return model


def divide(engine: "TrainingEngine", policy: nn.Module, dtype: torch.dtype, zero: Any, config: dict[str, Any]) -> None:
    """Shard ``policy`` over all ranks, in ``dtype``; what the first rank has counts. Every rank calls it.

    Args:
        engine: joined with the other ranks, without a model yet.
        policy: whole on the first rank, whole or hollow on the others.
        dtype: that it is trained in.
        zero: deepspeed.zero.
        config: DeepSpeed's.
    """
    # buffers are few and small (rotary frequencies, biases of routers), computed or read; a hollow model has none
    buffers = engine.of_first(lambda: {name: buffer.cpu() for name, buffer in policy.named_buffers()})
    for name, buffer in buffers.items():
        owner, _, own = name.rpartition(".")
        setattr(policy.get_submodule(owner), own, buffer.to(engine.device))
    first: Any = None
    for weight in policy.parameters():
        if engine.rank == 0:
            weight.data = weight.data.to(engine.device, dtype)
        else:
            weight.data = torch.empty(weight.shape, dtype=dtype, device=engine.device)
        if first is None:
            first = weight
            zero.Init(nn.ParameterList([weight]), config_dict_or_path=config)
        else:
            first.convert_to_zero_parameters([weight])
