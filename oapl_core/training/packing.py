"""Several sequences in one row without padding: when it is done, and the proof that they do not see each other.

Position ids that start again at 0 tell the model where a sequence begins. FlashAttention computes such rows as
sequences of variable length, at no cost; torch's SDPA masks the neighbours out, exactly but slower than length-sorted
padding (docs/benchmarks/trainer.md). Both need that neither an attention mask nor a key-value cache is given. A model
that ignores position ids (recurrent layers, an attention of its own) would mix neighbours without a word: so the first
thing a packing trainer does is to score two sequences together and apart.
"""

from typing import TYPE_CHECKING, Any, Literal

import torch

from oapl_core.errors import ConfigError

if TYPE_CHECKING:
    from oapl_core.training.engine import TrainingEngine

_FLASH = "flash_attention_2"
_APART = 0.05
"""More than rounding explains, also in bfloat16; neighbours that see each other were seen to shift by nats."""


def use_packing(model: Any, packing: Literal["auto", "on", "off"], dtype: torch.dtype) -> bool:
    """Whether to pack; chooses FlashAttention for ``model`` where it is installed and fits.

    ``auto`` packs where FlashAttention runs, ``on`` with any attention, ``off`` pads rows sorted by length.
    """
    from transformers.utils import is_flash_attn_2_available

    if packing == "off":
        return False
    # FlashAttention has kernels for 16-bit floats on GPUs only
    if torch.cuda.is_available() and dtype == torch.bfloat16 and is_flash_attn_2_available():
        model.set_attn_implementation(_FLASH)
    return packing == "on" or str(model.config._attn_implementation).startswith("flash_attention")


def refuse_leaks(engine: "TrainingEngine", vocabulary: int) -> None:
    """Score two short sequences together and apart; every rank calls it.

    Raises:
        ConfigError: the second one depends on the first.
    """
    # two sequences of six tokens with other ids: if they saw each other, the second one's log-probs would change
    ids = torch.arange(12, device=engine.device).reshape(2, 6) % vocabulary
    one, whole = torch.ones(2, dtype=torch.int64, device=engine.device), torch.full((2,), 6, device=engine.device)
    with torch.no_grad():
        together = engine(ids, one, whole, last=True)
        apart = torch.cat([engine(ids[i : i + 1], one[:1], whole[:1], last=True) for i in range(2)])
    # the largest over ranks: all must refuse, or the others would wait for those that did
    worst = float(engine.largest((together - apart).abs().max().reshape(1)))
    if not worst <= _APART:  # also where it is not a number
        raise ConfigError(
            f"training.packing: sequences packed into one row change each other's log-probs by {worst:.2g} nats; "
            "this model's attention does not tell them apart, set training.packing = 'off'"
        )
