"""Memory of a rank, estimated before training starts, and what `training.recompute` = auto means there.

How it is estimated, and what is not in it: planning/memory.py.
"""

from typing import Any

import torch

from oapl_core.planning.memory import MemoryEstimate, rank_memory, with_recomputation
from oapl_core.planning.model_size import ModelSize
from oapl_core.settings.training import CPU_TILE, GPU_TILE, TrainingConfig


def estimated(
    model: Any, training: TrainingConfig, ranks: int, longest: int, beside: int = 0
) -> tuple[TrainingConfig, MemoryEstimate]:
    """Return ``training`` with `recompute` decided, and the memory of a rank that then trains.

    Loading finds this by name (``plugins``, kind "training"), where there is a GPU or the model is not a tiny one.
    """
    decided = with_recomputation_decided(model, training, ranks, longest, beside)
    assert decided.recompute != "auto", "has just been decided"
    return decided, estimate_memory(model, decided, ranks, longest, beside)


def estimate_memory(model: Any, training: TrainingConfig, ranks: int, longest: int, beside: int = 0) -> MemoryEstimate:
    """Estimate each rank's memory for training ``model`` (a transformers model, before DeepSpeed has it).

    Its sizes count, and which of its weights are trained; ``longest``: tokens of the longest sequence.
    ``beside``: bytes that the objective's trainer keeps for each trained weight.
    """
    size, trained = _sizes(model)
    return rank_memory(training, size, ranks, longest, _tile(), trained, beside)


def with_recomputation_decided(
    model: Any, training: TrainingConfig, ranks: int, longest: int, beside: int = 0
) -> TrainingConfig:
    """Return ``training`` with `recompute` decided for this model and this machine's GPU."""
    size, trained = _sizes(model)
    # each rank decides the same, since all have GPUs of one kind
    there = torch.cuda.get_device_properties(0).total_memory if torch.cuda.is_available() else None
    return with_recomputation(training, size, ranks, longest, _tile(), there, trained, beside)


def _sizes(model: Any) -> tuple[ModelSize, int]:
    """Measure a transformers model; returns its size and the number of its trained weights."""
    config = model.config.get_text_config()
    size = ModelSize.shaped(sum(p.numel() for p in model.parameters()), lambda name: getattr(config, name, None))
    return size, sum(p.numel() for p in model.parameters() if p.requires_grad)


def _tile() -> int:
    return GPU_TILE if torch.cuda.is_available() else CPU_TILE
