"""Memory of a rank that trains, estimated from sizes and settings. Pure.

A rank, one of R, has P weights, P' of them trained, at w bytes a weight (bfloat16 2, float32 4). A micro-batch has T
tokens (where ranks share sequences: the rank's own):

    weights      P w                    / R with ZeRO 3, also while they are loaded, but for the largest of them; with
                                        zero_hpz_partition_size a copy more for each machine, shared by its ranks
    gradients    4 P', summed in float32      2 more in 16 bits with ZeRO 2, 3 or offloading; / R with ZeRO 2 and 3
    optimiser    P' (8 or 12)           / R with ZeRO 1, 2 and 3; two moments, and a float32 copy of the weights
                                        (ZeRO 0 in float32 has none); on the host with training.offload_optimizer;
                                        4 more where the objective keeps a copy (`ppo_ewma`)
    activations  T w per layer          times the numbers that `training.recompute` keeps (`recomputation.py`)
    output layer 8 min(C V, tile)       a tile of logits and its like in the backward pass, float32 (`logprobs.py`), a
                 + 12 T D + 8 c D       copy of the hidden states, one scaled and their gradient, and c columns of the
                                        weights and of their gradient, float32; c = tile / C
    gathered     w (4 V D + a layer)    with ZeRO 3: what a rank holds whole for a moment, embeddings and output layer,
                                        their gradients, and a layer; at most 2 w P

D hidden size, V vocabulary, C `training.logprob_chunk`.
Not in it: the allocator's fragments, communication buffers, the process itself (about 0.5 GiB, on GPUs 1).
"""

from dataclasses import dataclass

from oapl_core.planning.model_size import ModelSize
from oapl_core.planning.recomputation import (
    CHOICES,
    RECOMPUTED_FROM,
    Recomputation,
    in_words,
    kept_numbers,
    recomputed_share,
)
from oapl_core.settings.training import TrainingConfig

_GIB = 2**30


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes on one rank."""

    weights: float
    gradients: float
    optimizer: float
    activations: float
    output_layer: float
    gathered: float = 0.0
    """Bytes that ZeRO 3 makes whole for a moment."""
    host: float = 0.0
    """Optimiser's state that was moved to the host's memory."""
    recompute: Recomputation = "none"
    """Choice of the activations that are kept."""

    @property
    def total(self) -> float:
        """Bytes on the rank's own device."""
        return self.states + self.activations + self.output_layer + self.gathered

    @property
    def states(self) -> float:
        """Bytes that are there whatever the micro-batch: weights, gradients, optimiser."""
        return self.weights + self.gradients + self.optimizer

    @property
    def least(self) -> float:
        """A bound from below: activations are estimated within a third, and the process needs something itself."""
        return self.states + 2 / 3 * self.activations + _GIB

    @property
    def most(self) -> float:
        """A bound from above, for what chooses by itself: activations a third more, the process and fragments."""
        return self.total + self.activations / 3 + 2 * _GIB

    def line(self) -> str:
        """Describe the estimate to the person who waits."""
        parts = ["weights", "gradients", "optimizer", *["gathered"] * (self.gathered > 0), "activations"]
        parts.append("output_layer")
        listed = ", ".join(f"{name.replace('_', ' ')} {getattr(self, name) / _GIB:.2g}" for name in parts)
        host = f", and {self.host / _GIB:.2g} on the host" if self.host else ""
        how = in_words(self.recompute)
        return f"memory of a rank, estimated: {self.total / _GIB:.2g} GiB ({listed}){host}; {how}"


def rank_memory(
    training: TrainingConfig,
    model: ModelSize,
    ranks: int,
    longest: int,
    tile: int,
    trained: float | None = None,
    beside: int = 0,
) -> MemoryEstimate:
    """Estimate the memory that training needs on each of ``ranks``.

    Args:
        training: dtype, ZeRO stage, offloading, micro-batch size, what is recomputed (`auto`: as where no GPU is).
        model: its weights and widths.
        ranks: processes in all.
        longest: tokens of the longest sequence, which may be more than a micro-batch should hold.
        tile: logits that exist at once, CPU_TILE or GPU_TILE.
        trained: weights that are trained; None: all, or those of the adapter.
        beside: bytes that the objective's trainer keeps for each of them (``Method.bytes_beside``).
    """
    # adapters are counted here from their rank, by the trainer from the model that has them
    trained = trained_weights(training, model) if trained is None else trained
    choice = _without_gpu(model) if training.recompute == "auto" else training.recompute
    tokens = _tokens(training, ranks, longest)
    width = 2 if training.dtype == "bfloat16" else 4
    # torch's AdamW steps float32 weights in place; ZeRO keeps a flat copy of its own
    copies = 8 if training.zero_stage == 0 and width == 4 else 12
    optimizer = trained * (copies + beside) / (ranks if training.zero_stage >= 1 else 1)
    on_host = training.offload_optimizer == "cpu"
    # DeepSpeed's optimiser of ZeRO 1 gives gradients of 16 bits back as they are summed, its others keep them
    sums = 4 if width == 4 or (training.zero_stage == 1 and not on_host) else 6
    return MemoryEstimate(
        weights=model.parameters * width * _weight_share(training, ranks),
        gradients=trained * sums / (ranks if training.zero_stage >= 2 else 1),
        optimizer=0.0 if on_host else optimizer,
        activations=tokens * kept_numbers(choice, model, width == 4) * width,
        output_layer=_output_layer(training, model, tokens, tile),
        gathered=_gathered(model) * width if training.zero_stage == 3 else 0.0,
        host=optimizer if on_host else 0.0,
        recompute=choice,
    )


def with_recomputation(
    training: TrainingConfig,
    model: ModelSize,
    ranks: int,
    longest: int,
    tile: int,
    gpu_bytes: float | None,
    trained: float | None = None,
    beside: int = 0,
) -> TrainingConfig:
    """Return ``training`` with a `recompute` that is not `auto`: the one that repeats least of those that fit.

    Args:
        training: as of ``rank_memory``, like ``model``, ``ranks``, ``longest``, ``tile``, ``trained`` and
            ``beside``.
        gpu_bytes: memory of the smallest GPU; None: there is none.
    """
    if training.recompute != "auto":
        return training
    chosen: Recomputation = _without_gpu(model)
    if gpu_bytes is not None:
        ways = sorted(CHOICES, key=lambda choice: recomputed_share(choice, model, longest / 2))
        made = {choice: training.model_copy(update={"recompute": choice}) for choice in ways}
        fits = (
            choice
            for choice, one in made.items()
            if rank_memory(one, model, ranks, longest, tile, trained, beside).most <= gpu_bytes
        )
        chosen = next(fits, "all")
    return training.model_copy(update={"recompute": chosen})


def _without_gpu(model: ModelSize) -> Recomputation:
    return "all" if model.parameters >= RECOMPUTED_FROM else "none"


def _weight_share(training: TrainingConfig, ranks: int) -> float:
    """Return a rank's share of the weights: at ZeRO 3 its part, and its part of a machine's own copy if any."""
    if training.zero_stage < 3:
        return 1.0
    sharing = training.second_copy(ranks)
    return 1 / ranks + (1 / sharing if sharing > 1 else 0.0)


def trained_weights(training: TrainingConfig, model: ModelSize) -> float:
    """Count all weights, or those of adapters beside every linear layer."""
    return model.parameters if training.adapter is None else model.adapter_weights(training.adapter.rank)


def _tokens(training: TrainingConfig, ranks: int, longest: int) -> int:
    """Count the tokens of a rank's largest micro-batch."""
    own = -(-longest // training.sequence_parallel)
    # a small batch does not fill it
    rows = -(-training.batch_size * training.sequence_parallel // ranks)
    # a sequence longer than the budget goes alone, so it is then the largest one
    return max(own, min(training.tokens_per_micro_batch, rows * own))


def _output_layer(training: TrainingConfig, model: ModelSize, tokens: int, tile: int) -> float:
    columns = min(model.vocabulary, tile // min(training.logprob_chunk, tokens, tile))
    logits = min(training.logprob_chunk * model.vocabulary, tile)
    return 8.0 * logits + 12.0 * tokens * model.hidden + 8.0 * columns * model.hidden


def _gathered(model: ModelSize) -> float:
    ends = model.vocabulary * model.hidden
    return min(2 * model.parameters, 4 * ends + max(0.0, model.parameters - 2 * ends) / model.layers)
