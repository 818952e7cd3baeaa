"""Memory of a rank: an estimate before training starts, and one clear line when it runs out.

How it is estimated, and what is not in it: planning/memory.py.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from oapl_core.errors import StageFailed
from oapl_core.planning.memory import (
    CPU_TILE,
    GPU_TILE,
    MemoryEstimate,
    rank_memory,
    state_remedies,
    with_recomputation,
)
from oapl_core.planning.model_size import ModelSize
from oapl_core.settings.training import TrainingConfig

_EXHAUSTED = ("can't allocate memory", "not enough memory", "out of memory", "bad_alloc", "alloc_cpu")


def estimate_memory(model: Any, training: TrainingConfig, ranks: int, longest: int) -> MemoryEstimate:
    """Estimate each rank's memory for training ``model`` (a transformers model, before DeepSpeed has it).

    Its sizes count, and which of its weights are trained; ``longest``: tokens of the longest sequence.
    """
    size, trained = _sizes(model)
    return rank_memory(training, size, ranks, longest, _tile(), trained)


def with_recomputation_decided(model: Any, training: TrainingConfig, ranks: int, longest: int) -> TrainingConfig:
    """Return ``training`` with `recompute` decided for this model and this machine's GPU."""
    size, trained = _sizes(model)
    # each rank decides the same, since all have GPUs of one kind
    there = torch.cuda.get_device_properties(0).total_memory if torch.cuda.is_available() else None
    return with_recomputation(training, size, ranks, longest, _tile(), there, trained)


def _sizes(model: Any) -> tuple[ModelSize, int]:
    """Measure a transformers model; returns its size and the number of its trained weights."""
    config = model.config.get_text_config()
    size = ModelSize.shaped(sum(p.numel() for p in model.parameters()), lambda name: getattr(config, name, None))
    return size, sum(p.numel() for p in model.parameters() if p.requires_grad)


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
            raise StageFailed(f"out of memory in the optimiser's step: try {state_remedies(training)}") from None
        rows = f"{len(lengths)} sequences, {padded} tokens, longest {max(lengths, default=0)}"
        raise StageFailed(f"out of memory in a micro-batch of {rows}: {_remedy(lengths, training)}") from None


def _remedy(lengths: Sequence[int], training: TrainingConfig) -> str:
    recompute = "training.recompute = 'all'" if training.recompute != "all" else ""
    if len(lengths) > 1:
        lower = f"lower training.tokens_per_micro_batch (now {training.tokens_per_micro_batch})"
        return lower + (f", or set {recompute}" if recompute else "")
    remedies = [
        recompute,
        f"a lower training.logprob_chunk (now {training.logprob_chunk})",
        "a higher training.zero_stage on more ranks" if training.zero_stage < 3 else "",
        "training.offload_optimizer = 'cpu'" if training.offload_optimizer == "none" else "",
        "a higher training.sequence_parallel on more ranks",
        "a lower sampling.max_tokens",
    ]
    return "a single sequence cannot be cut; try " + ", ".join(filter(None, remedies))
