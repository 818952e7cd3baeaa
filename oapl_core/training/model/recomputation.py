"""Lets a model's backward pass compute activations again in place of keeping them: `training.recompute`.

torch's checkpointing around decoder layers, as transformers places it; what each choice keeps and costs, and which one
`auto` takes: planning/recomputation.py. Gradients are the same bits on a CPU.

torch's own selective checkpointing expects every operator of the forward pass again in the backward pass. Under ZeRO 3
weights are fetched and dropped in between, not alike in both; so here attention alone is kept and given back.
"""

from collections import deque
from collections.abc import Collection
from typing import Any

import torch
import torch.nn.attention.varlen  # registers the operator of packed rows
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from oapl_core.errors import ConfigError
from oapl_core.planning.recomputation import Recomputation
from oapl_core.training.ways import Way

_ATTENTION = (
    "aten::_scaled_dot_product_flash_attention",
    "aten::_scaled_dot_product_flash_attention_for_cpu",
    "aten::_scaled_dot_product_efficient_attention",
    "aten::_scaled_dot_product_cudnn_attention",
    "aten::_scaled_dot_product_fused_attention_overrideable",
    "aten::_flash_attention_forward",
    "aten::_efficient_attention_forward",
    "torch_attn::_varlen_attn",
)
"""Operators of torch that compute attention; which of them runs is decided by type, device and mask."""


class Recomputed(Way):
    """Activations that are not kept: `training.recompute`, once `auto` is decided."""

    def change(self, model: Any) -> None:
        """Let the backward pass compute again."""
        assert self.training.recompute != "auto", "has been decided"
        recompute(model, self.training.recompute)


def recompute(model: Any, choice: Recomputation) -> None:
    """Let the backward pass of a transformers ``model`` compute again what ``choice`` says.

    Raises:
        ConfigError: its layers cannot be computed again.
    """
    if choice == "none":
        return
    options: dict[str, Any] = {
        "use_reentrant": False,
        # layers draw no random numbers (see below), and comparing shapes of what is recomputed costs every layer time
        "preserve_rng_state": False,
        "determinism_check": "none",
    }
    if choice == "attention":
        options["context_fn"] = _keeping_attention
    try:
        model.gradient_checkpointing_enable(options, every_n_layers=choice if isinstance(choice, int) else 1)
    except ValueError:
        raise ConfigError(
            f"training.recompute = {choice!r}: {type(model).__name__} cannot compute its layers again; set it to 'none'"
        ) from None
    for module in model.modules():
        if not hasattr(module, "gradient_checkpointing"):
            continue
        # layers are recomputed in this mode only, but nothing is dropped: what they hold stays out of it
        module.training = True
        for name, value in vars(module).items():
            if "drop" in name and isinstance(value, float):
                setattr(module, name, 0.0)


def _keeping_attention() -> "tuple[_Kept, _Given]":
    """Return the contexts of one layer's forward pass and of its repetition."""
    names, outputs = (name.split("::") for name in _ATTENTION), deque[Any]()
    packets = (getattr(getattr(torch.ops, library), name, None) for library, name in names)
    operators = {packet.default for packet in packets if packet is not None}
    return _Kept(operators, outputs), _Given(operators, outputs)


class _Kept(TorchDispatchMode):
    """Keeps what the operators give."""

    def __init__(self, operators: Collection[Any], found: deque[Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._operators, self._found = operators, found

    def __torch_dispatch__(self, function: Any, _types: Any, inputs: Any = (), options: Any = None) -> Any:
        output = function(*inputs, **(options or {}))
        if function in self._operators:
            self._found.append(_detached(output))
        return output


class _Given(_Kept):
    """Gives it back, in its order."""

    def __torch_dispatch__(self, function: Any, _types: Any, inputs: Any = (), options: Any = None) -> Any:
        if function in self._operators:
            return _detached(self._found.popleft())
        return function(*inputs, **(options or {}))


def _detached(output: Any) -> Any:
    """Detach a tensor that an operator has given from autograd: the layer's graph would hold itself."""
    return tree_map_only(torch.Tensor, torch.Tensor.detach, output)
