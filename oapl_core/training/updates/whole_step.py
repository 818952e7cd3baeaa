"""Passes without gradient over many sequences before a step: statistics of a whole step, log-ratios to older weights.

Objectives whose scope is wider than a sequence need the first (``Method.statistics``), those with a pi_old of the
trainer's own the second. Reads and writes no files.
"""

from collections.abc import Sequence

import torch

from oapl_core.training.layouts.placing import places, sent
from oapl_core.training.scoring import scored
from oapl_core.training.steps import Trainer


def statistics(trainer: Trainer, batch: Sequence[int]) -> dict[int, torch.Tensor]:
    """Compute the objective's statistics of the whole step, [K] for each of ``batch``; the same on every rank.

    Costs a forward pass over the step, and 4 bytes for each of its tokens, padded, joined over the ranks.
    """
    rows, (log_ratio_ST, mask_ST) = list(batch), _scored(trainer, batch)
    inputs = trainer.inputs(log_ratio_ST, mask_ST, rows, trainer.sizes(rows))
    return dict(zip(rows, trainer.objective.statistics(inputs), strict=True))


def log_ratios(trainer: Trainer, rows: Sequence[int]) -> dict[int, torch.Tensor]:
    """Return ln pi - ln b of the response tokens of each of ``rows`` under the weights of now; the same on every
    rank.
    """
    log_ratio_ST, _ = _scored(trainer, rows)
    return {row: log_ratio_ST[s, : int(trainer.examples.sampled_S[row])] for s, row in enumerate(rows)}


def _scored(trainer: Trainer, batch: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ln pi - ln b of the response tokens, from the first column on, and the mask of them; on every rank."""
    engine, examples, rows = trainer.engine, trainer.examples, list(batch)
    sampled_S = torch.from_numpy(examples.sampled_S[rows])
    # sampled tokens from the first column on: the prompts' columns would only be joined for nothing
    mask_ST = torch.arange(int(sampled_S.max())) < sampled_S[:, None]
    log_ratio_ST = torch.zeros(mask_ST.shape, device=engine.device)
    line = {row: s for s, row in enumerate(rows)}
    for part in scored(engine, examples, rows, trainer.training.tokens_per_micro_batch):
        if not part.rows:  # a stand-in
            continue
        ratio_ST = part.logprob_ST.float() - sent(part.batch.compared_ST, engine.device)
        own_T = ratio_ST.flatten().index_select(0, sent(places(part.batch.mask_ST), engine.device))
        to_ST = torch.zeros_like(mask_ST)
        lines = [line[row] for row in part.rows]
        to_ST[lines] = mask_ST[lines]
        # values come in the order of the part's rows, places in that of ours
        order = sorted(range(len(lines)), key=lines.__getitem__)
        counts = sampled_S[lines].tolist()
        pieces = own_T.split(counts)
        own_T = torch.cat([pieces[s] for s in order])
        log_ratio_ST.view(-1).index_copy_(0, sent(places(to_ST), engine.device), own_T)
    engine.total(log_ratio_ST)
    return log_ratio_ST, sent(mask_ST, engine.device)
