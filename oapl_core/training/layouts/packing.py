"""Several sequences in one row without padding: when it is done, and the proof that they do not see each other.

Position ids that start again at 0 tell the model where a sequence begins, and ``attention.py`` computes each sequence
by itself. A model that ignores position ids (recurrent layers, an attention of its own) would mix neighbours without a
word. A packing trainer therefore begins by scoring two sequences together and apart.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import torch

from oapl_core.errors import ConfigError
from oapl_core.training.layouts.attention import give, has_kernel
from oapl_core.training.layouts.placing import VARIABLE_LENGTH
from oapl_core.training.model.logprobs import Policy
from oapl_core.training.ways import Way

if TYPE_CHECKING:
    from oapl_core.training.engine import TrainingEngine
    from oapl_core.training.examples import Examples

_APART = 0.05
"""Nats. Neighbours that see each other were seen to shift by several, a wrong order of heads by more than one."""
_KERNELS = 3.0
"""Largest difference of packed rows from torch's SDPA, in multiples of SDPA's own from plain matrix products. Two
kernels add in different orders: in bfloat16 that is a hundredth of a nat for some models and half a nat for Gemma 3.
"""


class Packed(Way):
    """Rows without padding: `training.packing` = 'on', and 'auto' where a kernel for packed rows runs."""

    def policy(self, model: Any, examples: "Examples") -> Policy | None:
        """Pack where the setting says so."""
        packs = use_packing(model, self.training.packing, getattr(torch, self.training.dtype))
        return Policy(model, examples.temperature, self.training.logprob_chunk, packed=True) if packs else None

    def begin(self, engine: "TrainingEngine", examples: "Examples") -> Mapping[str, str]:
        """Prove that packed sequences do not see each other; where they share a prompt, that way proves it."""
        if engine.policy.packed and not engine.policy.shares_prompts:
            refuse_leaks(engine, engine.policy.model.config.get_text_config().vocab_size)
        return {}


def use_packing(model: Any, packing: Literal["auto", "on", "off"], dtype: torch.dtype) -> bool:
    """Decide whether to pack; gives ``model`` the attention of ``attention.py`` where a kernel for it runs.

        auto   packs where such a kernel runs
        on     packs with any attention; torch's SDPA masks neighbours out: exact, but slower than length-sorted padding
        off    pads rows sorted by length

    docs/benchmarks/trainer.md has the speeds.
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
    refuse_changes(
        engine,
        (ids, one, whole),
        "training.packing: sequences packed into one row change each other's log-probs",
        "this model's attention does not tell them apart, set training.packing = 'off'",
    )


def refuse_changes(engine: "TrainingEngine", sequences: Sequence[torch.Tensor], what: str, advice: str) -> None:
    """Score ``sequences``, the inputs of a policy, together and, with the model's plain attention, each by itself.

    Raises:
        ConfigError: they differ by more than rounding; ``what`` does so, and what to do.
    """
    with torch.no_grad():
        together = engine(*sequences, last=True)
        packed = engine.policy.model.config._attn_implementation
        plain = "sdpa" if packed == VARIABLE_LENGTH else packed
        apart, by_products = (_apart(engine, kernel, *sequences) for kernel in (plain, "eager"))
    # the largest over ranks: all must refuse, or the others would wait for those that did
    worst = float(engine.largest((together - apart).abs().max().reshape(1)))
    rounding = float(engine.largest((by_products - apart).abs().max().reshape(1)))
    allowed = max(_APART, _KERNELS * rounding)
    if not worst <= allowed:  # also where it is not a number
        raise ConfigError(f"{what} by {worst:.2g} nats (rounding: {rounding:.2g}); {advice}")


def _apart(engine: "TrainingEngine", kernel: str, *sequences: torch.Tensor) -> torch.Tensor:
    """Return the log-probs of each sequence in a row of its own, with the attention ``kernel`` of transformers."""
    with _attention(engine.policy.model, kernel):
        return torch.cat(
            [engine(*(part[i : i + 1] for part in sequences), last=True) for i in range(len(sequences[0]))]
        )


@contextmanager
def _attention(model: Any, kernel: str) -> Iterator[None]:
    before = model.config._attn_implementation
    if kernel == before:
        yield
        return
    model.set_attn_implementation(kernel)
    try:
        yield
    finally:
        model.set_attn_implementation(before)
