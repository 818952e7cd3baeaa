"""Loads the checkpoint that a round starts from into an engine that trains it. Reads its files; writes nothing."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from oapl_core.errors import ConfigError
from oapl_core.progress import say
from oapl_core.seeds import derive_seed
from oapl_core.settings.training import TrainingConfig
from oapl_core.token_columns import TokenColumn, imported
from oapl_core.training.job import Job
from oapl_core.training.ranks import own_rank, rank_count

if TYPE_CHECKING:
    from oapl_core.planning.memory import MemoryEstimate
    from oapl_core.training.engine import TrainingEngine
    from oapl_core.training.examples import Examples
    from oapl_core.training.model.checkpoint import StoredModel
    from oapl_core.training.model.logprobs import Policy
    from oapl_core.training.speed import ModelFlops


@dataclass(frozen=True)
class Loaded:
    """A round's start, ready to be trained."""

    stored: "StoredModel"
    engine: "TrainingEngine"
    flops: "ModelFlops"
    estimate: "MemoryEstimate"
    """Estimate of a rank's memory."""
    computed_with: Mapping[str, Any]
    """Kernels, packing and the like that were chosen for this model and machine, for the record."""


def load(job: Job, examples: "Examples") -> Loaded:
    """Load the round's start and hand it to DeepSpeed; says how much memory training will need. Every rank calls it.

    Raises:
        DataError: the model's folder is damaged.
        ConfigError: the model, or the number of ranks, does not fit the settings.
    """
    import torch

    from oapl_core.training.engine import TrainingEngine
    from oapl_core.training.model.adapters import add_adapter
    from oapl_core.training.model.checkpoint import cast, load_model
    from oapl_core.training.model.experts import freeze_routers
    from oapl_core.training.model.kernels import choose_kernels
    from oapl_core.training.model.memory import estimate_memory, with_recomputation_decided
    from oapl_core.training.model.recomputation import recompute
    from oapl_core.training.speed import ModelFlops

    training, dtype = job.training, getattr(torch, job.training.dtype)
    divided = training.zero_stage == 3
    stored = load_model(job.start, hollow=dtype if divided and own_rank() else None)
    model = stored.model
    if not divided or training.adapter:  # otherwise weight by weight (division.py)
        cast(model, dtype)
    if training.router == "frozen":
        freeze_routers(model)
    if training.adapter:
        add_adapter(model, training.adapter, derive_seed(job.seed, "adapter", job.round_number))
    ranks, longest = rank_count(), max(examples.lengths)
    training = with_recomputation_decided(model, training, ranks, longest)
    assert training.recompute != "auto", "has just been decided"
    recompute(model, training.recompute)
    # All three before DeepSpeed has the model: ZeRO 3 would leave shards in place of the weights that they count.
    flops = ModelFlops.of(model)
    estimate = estimate_memory(model, training, ranks, longest)
    if not own_rank():
        say(estimate.line())
    policy = _policy(model, training, examples)
    engine = TrainingEngine(policy, training)
    _refuse_changes(policy, engine, examples)
    chosen = {"recompute": training.recompute, **choose_kernels(engine, examples, training)}
    return Loaded(stored, engine, flops, estimate, chosen)


def _refuse_changes(policy: "Policy", engine: "TrainingEngine", examples: "Examples") -> None:
    """Let ranks share sequences, if they do; then see that no sequence changes another's log-probs.

    Raises:
        ConfigError: it would.
    """
    from oapl_core.training.layouts.packing import refuse_leaks
    from oapl_core.training.layouts.sequence_parallel import SharedPolicy
    from oapl_core.training.layouts.shared_prompts import refuse_sharing

    if isinstance(policy, SharedPolicy):
        policy.share(engine)
    if policy.shares_prompts:
        refuse_sharing(engine, examples)
    elif policy.packed:
        refuse_leaks(engine, policy.model.config.get_text_config().vocab_size)


def _policy(model: Any, training: TrainingConfig, examples: "Examples") -> "Policy":
    """Wrap ``model`` in one of the ways to compute a micro-batch."""
    import torch

    from oapl_core.training.layouts.packing import use_packing
    from oapl_core.training.layouts.sequence_parallel import SharedPolicy
    from oapl_core.training.layouts.shared_prompts import SharedPromptPolicy, shares_prompts
    from oapl_core.training.model.logprobs import Policy

    if shares_prompts(model, training, examples):
        policy: Policy = SharedPromptPolicy(model, examples.temperature, training.logprob_chunk)
    else:
        packing = "off" if training.packing == "auto" and training.sequence_parallel > 1 else training.packing
        kind = SharedPolicy if training.sequence_parallel > 1 else Policy
        packed = use_packing(model, packing, getattr(torch, training.dtype))
        policy = kind(model, examples.temperature, training.logprob_chunk, packed)
    policy.holders = tuple(_holder(policy, training, column) for column in examples.columns)
    return policy


def _holder(policy: "Policy", training: TrainingConfig, column: TokenColumn) -> Any:
    """Let the policy compute with the numbers that are stored with its tokens.

    Raises:
        ConfigError: ranks share sequences, or the model has no place for them.
    """
    if training.sequence_parallel > 1:
        raise ConfigError(
            f"`training.sequence_parallel` = {training.sequence_parallel}: stored {column.name} "
            f"(sampling.{column.name}) are of whole sequences and are not shared; set it to 1"
        )
    holder = imported(column.holder)(policy.model, column)
    if not own_rank():
        say(column.told)
    return holder
