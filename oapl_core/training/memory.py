"""Memory of a rank: an estimate before training starts, and one clear line when it runs out.

For P weights, P' of them trained, R ranks, w bytes a weight (bfloat16 2, float32 4), and a micro-batch of T tokens
(where ranks share sequences: the rank's own):

    weights      P w                    / R with ZeRO 3
    gradients    P' (w, and 4 in 16 bits) / R with ZeRO 2 and 3; they are summed in float32
    optimiser    P' (8 or 12)           / R with ZeRO 1, 2 and 3; two moments, and a float32 copy of the weights
                                        (ZeRO 0 in float32 has none); on the host with training.offload_optimizer
    activations  T w per layer times    6 D + 4 (A + 2 K) + 4 I, or D with gradient checkpointing, plus one whole layer
    logits       8 min(C V, tile)       a tile of logits and its like in the backward pass, float32 (`logprobs.py`)

D hidden size, A and K widths of query and key heads, I feed-forward size, V vocabulary, C `training.logprob_chunk`.
Not in it: the allocator's fragments, communication buffers, the process itself (about 0.5 GiB, on GPUs 1).
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from oapl_core.errors import StageFailed
from oapl_core.settings.training import TrainingConfig
from oapl_core.training.logprobs import CPU_TILE, GPU_TILE

_GIB = 2**30
_EXHAUSTED = ("can't allocate memory", "not enough memory", "out of memory", "bad_alloc", "alloc_cpu")


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes on one rank."""

    weights: float
    gradients: float
    optimizer: float
    activations: float
    logits: float
    host: float = 0.0
    """Optimiser's state that was moved to the host's memory."""

    @property
    def total(self) -> float:
        """Bytes on the rank's own device."""
        return self.weights + self.gradients + self.optimizer + self.activations + self.logits

    def line(self) -> str:
        """For the person who waits."""
        parts = ("weights", "gradients", "optimizer", "activations", "logits")
        listed = ", ".join(f"{name} {getattr(self, name) / _GIB:.2g}" for name in parts)
        host = f", and {self.host / _GIB:.2g} on the host" if self.host else ""
        return f"memory of a rank, estimated: {self.total / _GIB:.2g} GiB ({listed}){host}"


def estimate_memory(model: Any, training: TrainingConfig, ranks: int, longest: int) -> MemoryEstimate:
    """What training ``model`` (a transformers model, before DeepSpeed has it) will need on each of ``ranks``.

    Args:
        model: its sizes count, and which of its weights are trained.
        training: dtype, ZeRO stage, offloading, micro-batch size.
        ranks: processes in all.
        longest: tokens of the longest sequence, which may be more than a micro-batch should hold.
    """
    weights = sum(p.numel() for p in model.parameters())
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    width = 2 if training.dtype == "bfloat16" else 4
    # torch's AdamW steps float32 weights in place; ZeRO keeps a flat copy of its own
    copies = 8 if training.zero_stage == 0 and width == 4 else 12
    optimizer = trained * copies / (ranks if training.zero_stage >= 1 else 1)
    on_host = training.offload_optimizer == "cpu"
    return MemoryEstimate(
        weights=weights * width / (ranks if training.zero_stage == 3 else 1),
        gradients=trained * (width if width == 4 else width + 4) / (ranks if training.zero_stage >= 2 else 1),
        optimizer=0.0 if on_host else optimizer,
        activations=_activations(model.config.get_text_config(), training, longest) * width,
        logits=8.0 * min(training.logprob_chunk * model.config.get_text_config().vocab_size, _tile()),
        host=optimizer if on_host else 0.0,
    )


def _activations(config: Any, training: TrainingConfig, longest: int) -> float:
    """Numbers that a forward pass keeps for the backward pass."""
    heads = config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    keys = (getattr(config, "num_key_value_heads", None) or heads) * size
    layer = 6 * config.hidden_size + 4 * (heads * size + 2 * keys) + 4 * config.intermediate_size
    layers = config.num_hidden_layers
    kept = layers * config.hidden_size + layer if training.gradient_checkpointing else layers * layer
    # a sequence longer than the budget goes alone, so it is then the largest micro-batch
    return float(max(training.tokens_per_micro_batch, -(-longest // training.sequence_parallel)) * kept)


def _tile() -> int:
    return GPU_TILE if torch.cuda.is_available() else CPU_TILE


@contextmanager
def explaining_exhaustion(lengths: Sequence[int] | None, padded: int, training: TrainingConfig) -> Iterator[None]:
    """Turn an allocation that fails into a line that says which micro-batch it was and what to lower.

    Args:
        lengths: tokens of the micro-batch's sequences; None: it is the optimiser's step.
        padded: tokens that it holds, padding included.
        training: what a person may lower.

    Raises:
        StageFailed: memory ran out.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:  # torch.OutOfMemoryError is a RuntimeError
        if not (isinstance(error, MemoryError) or any(sign in str(error) for sign in _EXHAUSTED)):
            raise
        if lengths is None:
            raise StageFailed(f"out of memory in the optimiser's step: try {_for_states(training)}") from None
        rows = f"{len(lengths)} sequences, {padded} tokens, longest {max(lengths, default=0)}"
        raise StageFailed(f"out of memory in a micro-batch of {rows}: {_remedy(lengths, training)}") from None


def _for_states(training: TrainingConfig) -> str:
    remedies = [
        "training.offload_optimizer = 'cpu'" if training.offload_optimizer == "none" else "",
        "a higher training.zero_stage on more ranks" if training.zero_stage < 3 else "more ranks",
        "[training.adapter]" if training.adapter is None else "",
    ]
    return ", ".join(filter(None, remedies))


def _remedy(lengths: Sequence[int], training: TrainingConfig) -> str:
    if len(lengths) > 1:
        return f"lower training.tokens_per_micro_batch (now {training.tokens_per_micro_batch})"
    remedies = [
        "training.gradient_checkpointing = true" if not training.gradient_checkpointing else "",
        f"a lower training.logprob_chunk (now {training.logprob_chunk})",
        "a higher training.zero_stage on more ranks" if training.zero_stage < 3 else "",
        "training.offload_optimizer = 'cpu'" if training.offload_optimizer == "none" else "",
        "a higher training.sequence_parallel on more ranks",
        "a lower sampling.max_tokens",
    ]
    return "a single sequence cannot be cut; try " + ", ".join(filter(None, remedies))
