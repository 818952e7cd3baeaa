"""Is an exported checkpoint what was trained? Loads the folder from the disk again and compares it with the trainer.

Every weight must be the trainer's, rounded to its stored type, to the last bit. Then the loaded model gets the
trainer's weights unrounded, and must give the trainer's log-probs on a few rollouts. That shows that configuration,
tied weights and code fit too. Reads the folder and 3_groups.parquet; writes nothing. It runs before the ledger records
the folder, so no later step can use a wrong one.
"""

import os
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from oapl_core.errors import DataError, StageFailed
from oapl_core.progress import say
from oapl_core.seeds import derive_seed
from oapl_core.training.model.checkpoint import cast, load_model
from oapl_core.training.model.logprobs import Policy

if TYPE_CHECKING:
    from oapl_core.settings.training import TrainingConfig
    from oapl_core.training.engine import TrainingEngine
    from oapl_core.training.examples import Batch, Examples

_DRAWN, _SCORED = 64, 4
_ALLOWED = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
"""Largest mean difference by the type that the trainer computes in. Nats per token."""
_ROUNDINGS = 3.0
"""More is allowed where it is the type's own doing: so many times what computing in float32 changes."""
_TOLD = 0.02
_ROOM = 1.3


def sample(examples: "Examples", seed: int, round_number: int, epoch: int) -> "list[Batch]":
    """Choose the shortest of some rollouts drawn at random, a micro-batch each: few enough for a large model to
    score.
    """
    draw = random.Random(derive_seed(seed, "export check", round_number, epoch))
    lengths = examples.lengths
    # the shortest of many: on its CPU copy of a large model a long answer would take minutes
    drawn = draw.sample(range(len(lengths)), min(_DRAWN, len(lengths)))
    return [examples.batch([row]) for row in sorted(drawn, key=lambda row: (lengths[row], row))[:_SCORED]]


def trainer_logprobs(engine: "TrainingEngine", batches: "Sequence[Batch]") -> list[Tensor]:
    """Return the log-probs of each batch under the weights being trained, on the CPU; every rank calls it."""
    logprobs = []
    for batch in batches:
        with torch.no_grad():
            logprobs.append(engine(batch.id_ST, batch.prompt_length_S, batch.length_S, last=True).float().cpu())
    return logprobs


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
    damaged = _changed(stored.model, weights)
    if damaged:
        raise StageFailed(f"{folder}: the exported weight {damaged} is not the trained one; {advice}")
    computed = getattr(torch, training.dtype)

    policy = Policy(stored.model, temperature, training.logprob_chunk)

    as_stored = _apart(_scored(policy, batches, computed), expected, batches)
    stored.model.load_state_dict({name: weight.detach().cpu() for name, weight in weights.items()})
    exact = _scored(policy, batches, computed)
    mean, allowed = _apart(exact, expected, batches), _ALLOWED[computed]
    if mean > allowed and computed != torch.float32:
        allowed = max(allowed, _ROUNDINGS * _apart(exact, _scored(policy, batches, torch.float32), batches))
    if not mean <= allowed:
        raise StageFailed(
            f"{folder}: log-probs of the exported checkpoint differ from the trainer's by {mean:.2g} nats per token, "
            f"rounding explains {allowed:.2g}; compare its config.json with the folder that training started from"
        )
    if as_stored > _TOLD and computed == torch.float32:
        say(f"storing the weights as before moves log-probs by {as_stored:.2g} nats per token; start from float32 ones")
    return as_stored


def _scored(policy: Policy, batches: "Sequence[Batch]", dtype: torch.dtype) -> list[Tensor]:
    """Score on the CPU, whose cores the other ranks leave idle, or on this rank's GPU where the model fits beside."""
    cast(policy, dtype)
    policy.device = _place(policy)
    policy.to(policy.device)
    with torch.no_grad(), _all_cores():
        logprobs = [policy(batch.id_ST, batch.prompt_length_S, batch.length_S).cpu() for batch in batches]
    policy.to("cpu")
    return logprobs


def _place(policy: Policy) -> torch.device:
    """Return the current GPU if the weights, and as much again as a short answer needs, fit beside its contents."""
    if torch.cuda.is_available():
        free, _ = torch.cuda.mem_get_info()
        if free > _ROOM * sum(weight.nbytes for weight in policy.parameters()):
            return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


@contextmanager
def _all_cores() -> Iterator[None]:
    """Lend this rank every core while it checks an export: the other ranks wait meanwhile."""
    before = torch.get_num_threads()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _apart(one: Sequence[Tensor], other: Sequence[Tensor], batches: "Sequence[Batch]") -> float:
    """Return the mean difference in nats per response token."""
    tokens = sum(float((batch.length_S - batch.prompt_length_S).sum()) for batch in batches)
    return sum(float((a.double() - b.double()).abs().sum()) for a, b in zip(one, other, strict=True)) / max(1.0, tokens)


def _changed(model: Any, weights: Mapping[str, Tensor]) -> str | None:
    """Name of a weight that is not the trainer's to the last bit: rounding is deterministic, so any other is damage."""
    for name, loaded in model.state_dict().items():
        if not torch.equal(loaded, weights[name].detach().to("cpu", loaded.dtype)):
            return str(name)
    return None
