"""Is an exported checkpoint what was trained? Loads the folder from the disk again and compares it with the trainer.

Every weight must be the trainer's, rounded to the type it is stored in, to the last bit; and the loaded model must give
the trainer's log-probs on a few rollouts, so that configuration, tied weights and code fit too. Reads the folder and
3_groups.parquet; writes nothing. It runs before the ledger records the folder, so no later step can use a wrong one.
"""

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from oapl_core.errors import DataError, StageFailed
from oapl_core.seeds import derive_seed
from oapl_core.training.checkpoint import load_model
from oapl_core.training.logprobs import Policy

if TYPE_CHECKING:
    from oapl_core.settings.training import TrainingConfig
    from oapl_core.training.engine import TrainingEngine
    from oapl_core.training.examples import Batch, Examples

_DRAWN, _SCORED = 64, 4
_ALLOWED = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
"""Largest mean difference by the coarsest type involved: a weight's rounding, over the depth of a model. Nats/token."""


def sample(examples: "Examples", seed: int, round_number: int, epoch: int) -> "list[Batch]":
    """The shortest of some rollouts drawn at random, a micro-batch each: what a large model can afford to score."""
    draw = random.Random(derive_seed(seed, "export check", round_number, epoch))
    lengths = examples.lengths
    # the shortest of many: on its CPU copy of a large model a long answer would take minutes
    drawn = draw.sample(range(len(lengths)), min(_DRAWN, len(lengths)))
    return [examples.batch([row]) for row in sorted(drawn, key=lambda row: (lengths[row], row))[:_SCORED]]


def trainer_logprobs(engine: "TrainingEngine", batches: "Sequence[Batch]") -> list[Tensor]:
    """Log-probs of each batch under the weights being trained, on the CPU; every rank calls it."""
    found = []
    for batch in batches:
        inputs = [tensor.to(engine.device) for tensor in (batch.id_ST, batch.prompt_length_S, batch.length_S)]
        with torch.no_grad():
            found.append(engine(*inputs, last=True).float().cpu())
    return found


def check_export(
    folder: Path,
    weights: Mapping[str, Tensor],
    batches: "Sequence[Batch]",
    expected: Sequence[Tensor],
    temperature: float,
    training: "TrainingConfig",
) -> float:
    """Compare ``folder`` with the trainer; returns the mean difference of log-probs in nats per token.

    Args:
        folder: the export.
        weights: the trainer's, by name.
        batches: what was scored.
        expected: what ``trainer_logprobs`` gave for each of them.
        temperature: that the rollouts were sampled with.
        training: its `dtype` is what the trainer computes in.

    Raises:
        StageFailed: the folder cannot be loaded, or is another model.
    """
    advice = "look at the disk, free some space and run the same command again"
    try:
        stored = load_model(folder)
    except DataError as error:
        raise StageFailed(f"the exported checkpoint cannot be used ({error}); {advice}") from None
    for name, loaded in stored.model.state_dict().items():
        # to the last bit: rounding to the stored type is deterministic, so any difference is damage
        if not torch.equal(loaded, weights[name].detach().to("cpu", loaded.dtype)):
            raise StageFailed(f"{folder}: the exported weight {name} is not the trained one; {advice}")
    computed = getattr(torch, training.dtype)
    # the coarser of what the trainer computes in and what is stored explains the difference
    allowed = max(_ALLOWED[computed], *(_ALLOWED.get(kind, 0.0) for kind in stored.types.values()))
    policy = Policy(stored.model.to(computed), temperature, training.logprob_chunk)
    difference = tokens = 0.0
    for batch, logprob_ST in zip(batches, expected, strict=True):
        with torch.no_grad():
            again_ST = policy(batch.id_ST, batch.prompt_length_S, batch.length_S).float()
        difference += float((again_ST.double() - logprob_ST.double()).abs().sum())
        tokens += float((batch.length_S - batch.prompt_length_S).sum())
    mean = difference / max(tokens, 1.0)
    if not mean <= allowed:
        raise StageFailed(
            f"{folder}: log-probs of the exported checkpoint differ from the trainer's by {mean:.2g} nats per token, "
            f"rounding explains {allowed:g}; compare its config.json with the folder that training started from"
        )
    return mean
