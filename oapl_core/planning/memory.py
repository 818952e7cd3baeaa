"""Memory of a rank that trains and of an engine that samples, estimated from sizes and settings. Pure.

A rank, for P weights, P' of them trained, R ranks, w bytes a weight (bfloat16 2, float32 4), and a micro-batch of T
tokens (where ranks share sequences: the rank's own):

    weights      P w                    / R with ZeRO 3, also while they are loaded, but for the largest of them
    gradients    P' (w, and 4 in 16 bits) / R with ZeRO 2 and 3; they are summed in float32
    optimiser    P' (8 or 12)           / R with ZeRO 1, 2 and 3; two moments, and a float32 copy of the weights
                                        (ZeRO 0 in float32 has none); on the host with training.offload_optimizer
    activations  T w per layer times    6 D + 4 (A + 2 K) + 4 I, or D with gradient checkpointing, plus one whole layer
    logits       8 min(C V, tile)       a tile of logits and its like in the backward pass, float32 (`logprobs.py`)

D hidden size, A and K widths of query and key heads, I feed-forward size, V vocabulary, C `training.logprob_chunk`.
Not in it: the allocator's fragments, communication buffers, the process itself (about 0.5 GiB, on GPUs 1).

An engine's GPU holds its share of the weights, and in what else `engine.gpu_memory_utilization` leaves, keys and
values: 2 K L numbers a token. Not in it: what a step computes with, captured graphs (a few GB).
"""

from dataclasses import dataclass

from oapl_core.planning.model_size import ModelSize
from oapl_core.settings.experiment import EngineConfig
from oapl_core.settings.training import TrainingConfig

CPU_TILE, GPU_TILE = 2**20, 2**26
"""Logits that exist at once, by measurement on a CPU (docs/benchmarks/trainer.md); a GPU wants larger products."""
_GIB = 2**30
_QUANTISED_BYTES = 0.5
"""Of a weight, at least, where `engine.options` has a `quantization`: nothing is refused that might fit."""


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
        return self.states + self.activations + self.logits

    @property
    def states(self) -> float:
        """What is there whatever the micro-batch: weights, gradients, optimiser."""
        return self.weights + self.gradients + self.optimizer

    @property
    def least(self) -> float:
        """A bound from below: activations are estimated within a third, and the process needs something itself."""
        return self.states + 2 / 3 * self.activations + _GIB

    def line(self) -> str:
        """For the person who waits."""
        parts = ("weights", "gradients", "optimizer", "activations", "logits")
        listed = ", ".join(f"{name} {getattr(self, name) / _GIB:.2g}" for name in parts)
        host = f", and {self.host / _GIB:.2g} on the host" if self.host else ""
        return f"memory of a rank, estimated: {self.total / _GIB:.2g} GiB ({listed}){host}"


def rank_memory(
    training: TrainingConfig, model: ModelSize, ranks: int, longest: int, tile: int, trained: float | None = None
) -> MemoryEstimate:
    """What training needs on each of ``ranks``.

    Args:
        training: dtype, ZeRO stage, offloading, micro-batch size.
        model: its weights and widths.
        ranks: processes in all.
        longest: tokens of the longest sequence, which may be more than a micro-batch should hold.
        tile: logits that exist at once, CPU_TILE or GPU_TILE.
        trained: weights that are trained; None: all, or those of the adapter.
    """
    # adapters are counted here from their rank, by the trainer from the model that has them
    trained = trained_weights(training, model) if trained is None else trained
    width = 2 if training.dtype == "bfloat16" else 4
    # torch's AdamW steps float32 weights in place; ZeRO keeps a flat copy of its own
    copies = 8 if training.zero_stage == 0 and width == 4 else 12
    optimizer = trained * copies / (ranks if training.zero_stage >= 1 else 1)
    on_host = training.offload_optimizer == "cpu"
    return MemoryEstimate(
        weights=model.parameters * width / (ranks if training.zero_stage == 3 else 1),
        gradients=trained * (width if width == 4 else width + 4) / (ranks if training.zero_stage >= 2 else 1),
        optimizer=0.0 if on_host else optimizer,
        activations=_activations(model, training, longest) * width,
        logits=8.0 * min(training.logprob_chunk * model.vocabulary, tile),
        host=optimizer if on_host else 0.0,
    )


def trained_weights(training: TrainingConfig, model: ModelSize) -> float:
    """All of them, or those of adapters beside every linear layer."""
    if training.adapter is None:
        return model.parameters
    ends = 4 * model.hidden + 2 * model.query_width + 2 * model.key_width + 3 * (model.hidden + model.feed_forward)
    return training.adapter.rank * model.layers * ends


def _activations(model: ModelSize, training: TrainingConfig, longest: int) -> float:
    """Numbers that a forward pass keeps for the backward pass."""
    layer = 6 * model.hidden + 4 * (model.query_width + 2 * model.key_width) + 4 * model.feed_forward
    recomputes = training.recomputes(model.parameters)
    kept = model.layers * model.hidden + layer if recomputes else model.layers * layer
    # a sequence longer than the budget goes alone, so it is then the largest micro-batch
    return float(max(training.tokens_per_micro_batch, -(-longest // training.sequence_parallel)) * kept)


def state_remedies(training: TrainingConfig) -> str:
    """Settings that make what a rank always holds smaller."""
    remedies = [
        "training.offload_optimizer = 'cpu'" if training.offload_optimizer == "none" else "",
        "a higher training.zero_stage on more ranks" if training.zero_stage < 3 else "more ranks",
        "[training.adapter]" if training.adapter is None else "",
    ]
    return ", ".join(filter(None, remedies))


@dataclass(frozen=True)
class EngineMemory:
    """One engine (replica) on ``gpus`` GPUs; bytes of all of them together."""

    gpus: int
    weights: float
    allowed: float
    """What vLLM may take."""
    token: float
    """Keys and values of one."""

    @property
    def tokens(self) -> float:
        """Whose keys and values fit beside the weights; 0 or less where not even the weights do."""
        return (self.allowed - self.weights) / self.token

    def line(self) -> str:
        """For `oapl plan`."""
        room = max(0.0, self.allowed - self.weights)
        return (
            f"memory of an engine, estimated: {self.gpus} GPU{'s' * (self.gpus > 1)}, weights "
            f"{self.weights / _GIB:.3g} GiB, and {room / _GIB:.3g} for keys and values of "
            f"{max(0.0, self.tokens):,.0f} tokens"
        )


def engine_memory(engine: EngineConfig, model: ModelSize, gpu_bytes: float) -> EngineMemory:
    """What an engine needs of GPUs with so much memory."""
    gpus = engine.tensor_parallel_size * engine.pipeline_parallel_size
    # `auto` is the type of the files, which is 16 bits in every model that is worth a GPU
    width = 4.0 if engine.dtype == "float32" else 2.0
    weight = _QUANTISED_BYTES if engine.options.get("quantization") else width
    number = 1.0 if str(engine.options.get("kv_cache_dtype", "")).startswith("fp8") else width
    token = model.kept_numbers * number
    # tensor parallelism divides the key heads too, pipelining the layers: all GPUs together hold a token once
    allowed = gpus * gpu_bytes * engine.gpu_memory_utilization
    return EngineMemory(gpus, model.parameters * weight, allowed, token)
