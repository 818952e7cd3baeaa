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

if TYPE_CHECKING:
    from oapl_core.training.engine import TrainingEngine


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
