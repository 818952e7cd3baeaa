"""Division of an epoch into optimiser steps, and of a step into micro-batches; pure, the same on every rank.

An epoch visits every sequence once in an order shuffled by a derived seed. Where an objective compares the answers of a
prompt, or answers share one, it visits whole groups: a step has as many as surely fit.

A global batch of consecutive sequences is dealt to the ranks by length. Each rank sorts its share by length and cuts it
into micro-batches within a token budget:

    padded           right-padded; the padded size counts
    packed           without padding, the longest first into the first micro-batch with room
    shared prompts   answers to one prompt stay together, and its tokens count once (``shared_prompts.py``)

Every rank gets the same number of micro-batches: empty ones are appended, because collective operations must happen
equally often everywhere.
"""

import random
from collections.abc import Callable, Sequence

from oapl_core.seeds import derive_seed

Shares = list[list[list[int]]]
"""Sequence numbers of each micro-batch of each rank."""
Deal = Callable[[Sequence[int], Sequence[int], int, int], Shares]
"""Function of sequence numbers, the longest first, the tokens of every sequence, a micro-batch's most, and the ranks.
"""


def epoch_order(sequences: int, seed: int, round_number: int, epoch: int) -> list[int]:
    """Return a permutation of ``range(sequences)`` that depends on nothing but the arguments."""
    order = list(range(sequences))
    random.Random(derive_seed(seed, "training order", round_number, epoch)).shuffle(order)
    return order


def global_batches(order: Sequence[int], batch_size: int) -> list[list[int]]:
    """Return the consecutive slices of ``order``; the last one may be short, none is dropped.

    Raises:
        ValueError: ``batch_size`` is not positive.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size must be positive, not {batch_size}")
    return [list(order[i : i + batch_size]) for i in range(0, len(order), batch_size)]


def epoch_batches(
    rows: Sequence[int], groups: Sequence[int] | None, batch_size: int, seed: int, round_number: int, epoch: int
) -> list[list[int]]:
    """Divide ``rows`` into the optimiser steps of an epoch; equally many in every epoch.

    Args:
        rows: sequence numbers.
        groups: label of each of ``rows``, if steps are made of whole groups: ``batch_size`` over the largest group's
            size of them (at least one).
        batch_size: sequences of a step; with ``groups`` the most it has, unless a single group is larger.
        seed: of the run.
        round_number: counted from 0.
        epoch: counted from 1.
    """
    if groups is None:
        units = [[row] for row in rows]
    else:
        members: dict[int, list[int]] = {}
        for row, group in zip(rows, groups, strict=True):
            members.setdefault(group, []).append(row)
        units = list(members.values())
    order = epoch_order(len(units), seed, round_number, epoch)
    # by the largest group, so that every epoch has as many steps whatever its order
    per_batch = max(1, batch_size // max(map(len, units), default=1))
    return [[row for unit in batch for row in units[unit]] for batch in global_batches(order, per_batch)]


def padded(by_length: Sequence[int], lengths: Sequence[int], token_budget: int, ranks: int) -> Shares:
    """Deal sequences in turn, and cut each rank's into right-padded rows."""
    return [_cut(by_length[rank::ranks], lengths, token_budget) for rank in range(ranks)]


def packed(by_length: Sequence[int], lengths: Sequence[int], token_budget: int, ranks: int) -> Shares:
    """Deal sequences in turn, and cut each rank's into rows without padding."""
    return [pack(by_length[rank::ranks], lengths, token_budget) for rank in range(ranks)]


def _cut(by_length: Sequence[int], lengths: Sequence[int], token_budget: int) -> list[list[int]]:
    share: list[list[int]] = []
    for i in by_length:
        # sorted: a micro-batch is as wide as its first row
        if share and (len(share[-1]) + 1) * lengths[share[-1][0]] <= token_budget:
            share[-1].append(i)
        else:
            share.append([i])
    return share


def pack(by_length: Sequence[int], lengths: Sequence[int], token_budget: int) -> list[list[int]]:
    """Put each sequence into the first micro-batch with room for it, in their order."""
    share: list[list[int]] = []
    room: list[int] = []
    for i in by_length:
        place = next((p for p, left in enumerate(room) if lengths[i] <= left), len(room))
        if place == len(room):
            share.append([])
            room.append(token_budget)
        share[place].append(i)
        room[place] -= lengths[i]
    return share


def micro_batches(
    batch: Sequence[int],
    lengths: Sequence[int],
    token_budget: int,
    ranks: int = 1,
    deal: Deal = padded,
) -> Shares:
    """Cut a global batch for each rank.

    Args:
        batch: sequence numbers.
        lengths: tokens of every sequence of the data set, indexed by sequence number.
        token_budget: largest (rows x longest row) of a micro-batch, or sum of its rows if packed; a longer sequence
            goes alone.
        ranks: processes to deal to, or groups of them that share each sequence.
        deal: how ranks get their sequences and cut them.

    Returns:
        For each rank its micro-batches, equally many for all; empty lists stand for "nothing, but take part".

    Raises:
        ValueError: ``token_budget`` or ``ranks`` is not positive.
    """
    if token_budget < 1 or ranks < 1:
        raise ValueError(f"token_budget and ranks must be positive, not {token_budget} and {ranks}")
    # Longest first: an allocation too large for the device fails on the first micro-batch, not on the last.
    by_length = sorted(batch, key=lambda i: (-lengths[i], i))
    shares = deal(by_length, lengths, token_budget, ranks)
    # a rank with fewer runs stand-ins: a collective operation that one rank leaves out hangs the others
    most = max(len(share) for share in shares)
    return [share + [[] for _ in range(most - len(share))] for share in shares]
