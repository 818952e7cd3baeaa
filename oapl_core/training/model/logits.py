"""A causal model's function from output layer to logits, found by the model's own forward pass.

Most families multiply hidden states by the output layer and are done. Granite and Cohere scale the result, Gemma caps
it softly, others do both. One form covers all of them: cap tanh(scale z / cap) of a logit z. Their settings have
different names (``logits_scaling``, ``logit_scale``, ``final_logit_softcapping``, ``lm_head_multiplier``, ...) and some
models ignore theirs, so no name is trusted. Instead, stand-ins take the place of the backbone and of the output layer.
Made-up logits go through the model's ``forward``, and its output is compared with the form over their whole range.
Costs no weight and no product.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from oapl_core.errors import ConfigError

_LARGE, _SMALL = 2.0**40, 2.0**-40
_ALLOWED = 1e-4
"""Relative; rounding of a forward pass that casts logits to float32 is 1e-7, and nobody scales by so little."""


@dataclass(frozen=True)
class LogitForm:
    """logit = cap tanh(scale z / cap) of z = hidden @ weight.T, or scale z without a cap."""

    scale: float = 1.0
    cap: float | None = None

    def __call__(self, z: Tensor) -> Tensor:
        """Apply the form, elementwise."""
        return z * self.scale if self.cap is None else self.cap * torch.tanh(z * self.scale / self.cap)


PLAIN = LogitForm()


def logit_form(model: Any) -> LogitForm:
    """Find the form of a transformers model.

    Raises:
        ConfigError: it computes its logits in another way, which would be trained wrongly without a word.
    """
    name, head = type(model).__name__, model.get_output_embeddings()
    other = "" if type(head) is nn.Linear else f"an output layer of type {type(head).__name__}"
    if other or getattr(head, "bias", None) is not None:
        what = other or "a bias"
        raise ConfigError(
            f"{name}: computes its logits with {what}, which the trainer does not know; choose another `model`"
        )
    # A few orders of magnitude of both signs; both ends at once show slope and cap to the last digit.
    size = torch.logspace(-6, 6, 97, dtype=torch.float64)
    z = torch.cat([-size, size, torch.tensor([_SMALL, _LARGE], dtype=torch.float64)])
    try:
        found = _through(model, z)
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{name}: how it computes its logits cannot be found out ({reason:.200})") from None
    if found.shape == z.shape:
        scale, end = float(found[-2]) / _SMALL, float(found[-1])
        form = LogitForm(scale, None if abs(end - scale * _LARGE) <= _ALLOWED * abs(end) else end)
        if scale > 0 and torch.allclose(form(z), found.double(), rtol=_ALLOWED, atol=0):
            return form
    raise ConfigError(
        f"{name}: changes its logits in another way than by a scale and a soft cap, so the trainer's log-probs "
        "would be wrong; choose another `model`"
    )


def _through(model: Any, z: Tensor) -> Tensor:
    """Run ``model``'s forward pass on made-up logits ``z`` of one token; returns its logits and that token's hidden
    state.
    """
    head, backbone = model.get_output_embeddings(), model.base_model
    if backbone is model:
        raise ValueError("it has no backbone of its own")
    token, asked = torch.zeros(1, 1, dtype=torch.int64, device=head.weight.device), []
    made_up = (2.0 ** (torch.arange(head.in_features) % 8)).double()[None, None]  # exact in every type

    def backbone_forward(*_: Any, **__: Any) -> _Outputs:
        asked.append(True)
        return _Outputs((made_up,))

    def hidden() -> Tensor:
        if asked:
            return made_up
        del backbone.forward  # OPT calls a part of its backbone, so the real one computes a token
        real: Tensor = backbone(input_ids=token, use_cache=False).last_hidden_state
        return real

    model.set_output_embeddings(_StandIn(hidden, z, head.weight))
    backbone.forward = backbone_forward  # the instance's attribute hides the class's method until it is deleted
    try:
        with torch.no_grad():
            logits: Tensor = model(input_ids=token, use_cache=False).logits
    finally:
        backbone.__dict__.pop("forward", None)
        model.set_output_embeddings(head)
    return logits.flatten()


class _Outputs(tuple[Tensor]):
    """A backbone's answer: its hidden states, and nothing of all else that a model may ask for."""

    @property
    def last_hidden_state(self) -> Tensor:
        return self[0]

    def __getattr__(self, name: str) -> None:
        return None


class _StandIn(nn.Module):
    """An output layer that gives made-up logits, scaled as the hidden state is that reaches it."""

    def __init__(self, hidden: Callable[[], Tensor], z: Tensor, weight: nn.Parameter) -> None:
        super().__init__()
        self.hidden, self.z, self.weight = hidden, z, weight

    def forward(self, hidden: Tensor) -> Tensor:
        given = self.hidden()
        scale = hidden.double().norm() / given.double().norm()
        if not torch.allclose(hidden.double(), given.double() * scale, rtol=_ALLOWED, atol=_ALLOWED):
            raise ValueError("hidden states go through another layer before the output layer")
        logits: Tensor = self.z[None, None] * scale
        return logits
