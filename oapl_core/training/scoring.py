"""Log-probs of rollouts under the current weights, without a gradient. Reads and writes no files."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from oapl_core.training.examples import Batch, Examples
from oapl_core.training.layouts.batching import micro_batches
from oapl_core.training.layouts.placing import sent

if TYPE_CHECKING:
    from oapl_core.training.engine import TrainingEngine


@dataclass(frozen=True)
class Scored:
    """A micro-batch with the log-probs of its response tokens."""

    rows: Sequence[int]
    """Numbers of its sequences; none if this rank had no work left and scored a stand-in."""
    batch: Batch
    logprob_ST: torch.Tensor
    """[S, T - 1], on the device; 0 where ``mask_ST`` is false."""

    @property
    def mask_ST(self) -> torch.Tensor:
        """[S, T - 1], on the device: true where a token that the model sampled is scored."""
        return sent(self.batch.mask_ST, self.logprob_ST.device)


def rank_share(engine: "TrainingEngine", examples: Examples, rows: Sequence[int], token_budget: int) -> list[list[int]]:
    """Return this rank's micro-batches of ``rows``, of ``token_budget`` each; every rank gets equally many."""
    # the setting is what one rank holds, and these hold a sequence together
    budget, policy = token_budget * engine.sequence_ranks, engine.policy
    shares = micro_batches(rows, examples.lengths, budget, engine.data_ranks, policy.deal(examples.prompts))
    return shares[engine.data_rank]


def scored(engine: "TrainingEngine", examples: Examples, rows: Sequence[int], token_budget: int) -> Iterator[Scored]:
    """Yield this rank's share of ``rows``, micro-batch by micro-batch; every rank gets equally many."""
    for share in rank_share(engine, examples, rows, token_budget):
        batch = examples.batch(share)
        with torch.no_grad():
            logprob_ST = engine(*batch.given(), last=True)
        yield Scored(share, batch, logprob_ST)
