"""Memory of an engine that samples, and lengths that an experiment expects; for `oapl plan` and before a run. Pure.

An engine's GPU holds its share of the weights, and in what else `engine.gpu_memory_utilization` leaves, keys and
values: 2 K L numbers a token. K is the width of key heads, L the number of layers. Not in it: what a step computes
with, captured graphs (a few GB).
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from oapl_core.objectives import Method
from oapl_core.planning.memory import with_recomputation
from oapl_core.planning.model_size import ModelSize
from oapl_core.settings.experiment import EngineConfig, Experiment
from oapl_core.settings.training import GPU_TILE, TrainingConfig

_GIB = 2**30
_QUANTISED_BYTES = 0.5
"""Bytes of a weight, at least, where `engine.options` has a `quantization`: nothing is refused that might fit. FP8 has
twice as many."""


@dataclass(frozen=True)
class EngineMemory:
    """One engine (replica) on ``gpus`` GPUs; bytes of all of them together."""

    gpus: int
    weights: float
    allowed: float
    """Bytes that vLLM may take."""
    token: float
    """Keys and values of one."""

    @property
    def tokens(self) -> float:
        """Whose keys and values fit beside the weights; 0 or less where not even the weights do."""
        return (self.allowed - self.weights) / self.token

    def line(self) -> str:
        """Return the line for `oapl plan`."""
        room = max(0.0, self.allowed - self.weights)
        return (
            f"memory of an engine, estimated: {self.gpus} GPU{'s' * (self.gpus > 1)}, weights "
            f"{self.weights / _GIB:.3g} GiB, and {room / _GIB:.3g} for keys and values of "
            f"{max(0.0, self.tokens):,.0f} tokens"
        )


def engine_memory(engine: EngineConfig, model: ModelSize, gpu_bytes: float) -> EngineMemory:
    """Estimate the memory that an engine needs of GPUs with so much memory."""
    gpus = engine.gpus
    # `auto` is the type of the files, which is 16 bits in every model that is worth a GPU
    width = 4.0 if engine.dtype == "float32" else 2.0
    method = str(engine.options.get("quantization") or "")
    weight = 1.0 if "fp8" in method else _QUANTISED_BYTES if method else width
    number = 1.0 if str(engine.options.get("kv_cache_dtype", "")).startswith("fp8") else width
    token = model.kept_numbers * number
    # tensor parallelism divides the key heads too, pipelining the layers: all GPUs together hold a token once
    allowed = gpus * gpu_bytes * engine.gpu_memory_utilization
    return EngineMemory(gpus, model.parameters * weight, allowed, token)


def prompt_tokens(experiment: Experiment) -> float:
    """Return the expected tokens of a prompt."""
    return min(experiment.estimate.prompt_tokens, experiment.problems.max_prompt_tokens)


def mean_square(experiment: Experiment, tokens: float, longest: float) -> float:
    """Return the mean square of answers' lengths with mean ``tokens``; none is longer than ``longest``."""
    return tokens * min(longest, tokens * (1 + experiment.estimate.answer_spread**2))


def context(experiment: Experiment, answer_tokens: float, longest: float = math.inf) -> float:
    """Return the mean tokens of a sequence at a moment of its decoding."""
    return prompt_tokens(experiment) + mean_square(experiment, answer_tokens, longest) / (2 * answer_tokens)


def planned_training(
    experiment: Experiment, model: ModelSize, ranks: int, gpu_bytes: float, objectives: Iterable[object]
) -> TrainingConfig:
    """Return ``experiment.training`` as ``ranks`` GPUs of so much memory train, with their `recompute`."""
    longest, beside = longest_sequence(experiment), bytes_beside(objectives)[0]
    return with_recomputation(experiment.training, model, ranks, longest, GPU_TILE, gpu_bytes, beside=beside)


def bytes_beside(objectives: Iterable[object]) -> tuple[int, int]:
    """Return what is kept for each trained weight beside the optimiser: bytes in memory, and in a state.

    The most of all objectives counts. One of a person's own is not loaded by a plan, and counts as 0.
    """
    found = [one.bytes_beside for one in objectives if isinstance(one, Method)]
    return max((memory for memory, _ in found), default=0), max((state for _, state in found), default=0)


def longest_sequence(experiment: Experiment) -> int:
    """Count the tokens that a prompt and its answer may have."""
    return experiment.problems.max_prompt_tokens + experiment.sampling.max_tokens
