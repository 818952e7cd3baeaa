"""Several sequences in one row without padding: when it is done, and the proof that they do not see each other.

Position ids that start again at 0 tell the model where a sequence begins, and ``attention.py`` computes each sequence
by itself. A model that ignores position ids (recurrent layers, an attention of its own) would mix neighbours without a
word: so the first thing a packing trainer does is to score two sequences together and apart.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import torch

from oapl_core.errors import ConfigError
from oapl_core.training.attention import VARIABLE_LENGTH, give, has_kernel

if TYPE_CHECKING:
    from oapl_core.training.engine import TrainingEngine

_APART = 0.05
"""More than rounding explains, also in bfloat16; neighbours that see each other were seen to shift by nats."""
_OTHER_KERNEL = 0.25
"""The same between two kernels, which add in other orders; wrong heads or a missing mask shift by more than a nat."""


def use_packing(model: Any, packing: Literal["auto", "on", "off"], dtype: torch.dtype) -> bool:
    """Whether to pack; gives ``model`` the attention of ``attention.py`` where a kernel for it runs.

    ``auto`` packs where such a kernel runs, ``on`` with any attention (torch's SDPA masks neighbours out: exact, but
    slower than length-sorted padding, docs/benchmarks/trainer.md), ``off`` pads rows sorted by length.
    """
    if packing == "off":
        return False
    fits = has_kernel(model, dtype)
    if fits:
        give(model)
    return packing == "on" or fits


def refuse_leaks(engine: "TrainingEngine", vocabulary: int) -> None:
    """Score two short sequences together and, with the model's plain attention, apart; every rank calls it.

    Raises:
        ConfigError: the second one depends on the first, or the attention for packed rows is not the model's own.
    """
    # two sequences of six tokens with other ids: if they saw each other, the second one's log-probs would change
    ids = torch.arange(12, device=engine.device).reshape(2, 6) % vocabulary
    one, whole = torch.ones(2, dtype=torch.int64, device=engine.device), torch.full((2,), 6, device=engine.device)
    with torch.no_grad():
        together = engine(ids, one, whole, last=True)
        with _plain_attention(engine.policy.model):
            apart = torch.cat([engine(ids[i : i + 1], one[:1], whole[:1], last=True) for i in range(2)])
    # the largest over ranks: all must refuse, or the others would wait for those that did
    worst = float(engine.largest((together - apart).abs().max().reshape(1)))
    allowed = _OTHER_KERNEL if engine.policy.model.config._attn_implementation == VARIABLE_LENGTH else _APART
    if not worst <= allowed:  # also where it is not a number
        raise ConfigError(
            f"training.packing: sequences packed into one row change each other's log-probs by {worst:.2g} nats; "
            "this model's attention does not tell them apart, set training.packing = 'off'"
        )


@contextmanager
def _plain_attention(model: Any) -> Iterator[None]:
    """``model`` with torch's SDPA in place of the attention for packed rows, a kernel that could be wrong itself."""
    if model.config._attn_implementation != VARIABLE_LENGTH:
        yield
        return
    model.set_attn_implementation("sdpa")
    try:
        yield
    finally:
        model.set_attn_implementation(VARIABLE_LENGTH)
