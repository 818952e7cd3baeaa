"""Division of an epoch into optimiser steps, and of a step into micro-batches; pure, the same on every rank.

An epoch visits every sequence once in an order shuffled by a derived seed. Where an objective compares the answers of a
prompt, or answers share one, it visits whole groups: a step has as many as surely fit.

A global batch of consecutive sequences is dealt to the ranks by length. Each rank sorts its share by length and cuts it
into micro-batches within a token budget:

    padded           right-padded; the padded size counts
    packed           without padding, the longest first into the first micro-batch with room
    shared prompts   answers to one prompt stay together, and its tokens count once

Every rank gets the same number of micro-batches: empty ones are appended, because collective operations must happen
equally often everywhere.
"""

import random
from collections import Counter
from collections.abc import Iterable, Sequence

from oapl_core.seeds import derive_seed

Prompts = Sequence[tuple[int, int]]
"""A label of each sequence's prompt, and its tokens; equal for those that have the same."""


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


def micro_batches(
    batch: Sequence[int],
    lengths: Sequence[int],
    token_budget: int,
    ranks: int = 1,
    packed: bool = False,
    prompts: Prompts | None = None,
) -> list[list[list[int]]]:
    """Cut a global batch for each rank.

    Args:
        batch: sequence numbers.
        lengths: tokens of every sequence of the data set, indexed by sequence number.
        token_budget: largest (rows x longest row) of a micro-batch, or sum of its rows if packed; a longer sequence
            goes alone.
        ranks: processes to deal to, or groups of them that share each sequence.
        packed: micro-batches hold no padding.
        prompts: of every sequence, if a packed micro-batch holds each of them once.

    Returns:
        For each rank its micro-batches, equally many for all; empty lists stand for "nothing, but take part".

    Raises:
        ValueError: ``token_budget`` or ``ranks`` is not positive.
    """
    if token_budget < 1 or ranks < 1:
        raise ValueError(f"token_budget and ranks must be positive, not {token_budget} and {ranks}")
    # Longest first: an allocation too large for the device fails on the first micro-batch, not on the last.
    by_length = sorted(batch, key=lambda i: (-lengths[i], i))
    if prompts is None:
        cut = _pack if packed else _cut
        shares = [cut(by_length[rank::ranks], lengths, token_budget) for rank in range(ranks)]
    else:
        shares = _shared(by_length, lengths, prompts, token_budget, ranks)
    # a rank with fewer runs stand-ins: a collective operation that one rank leaves out hangs the others
    most = max(len(share) for share in shares)
    return [share + [[] for _ in range(most - len(share))] for share in shares]


def _cut(by_length: Sequence[int], lengths: Sequence[int], token_budget: int) -> list[list[int]]:
    share: list[list[int]] = []
    for i in by_length:
        # sorted: a micro-batch is as wide as its first row
        if share and (len(share[-1]) + 1) * lengths[share[-1][0]] <= token_budget:
            share[-1].append(i)
        else:
            share.append([i])
    return share


def _pack(by_length: Sequence[int], lengths: Sequence[int], token_budget: int) -> list[list[int]]:
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


def repeated_prompts(rows: Iterable[int], prompts: Prompts) -> list[int]:
    """Return the tokens of every prompt of ``rows`` that one before it has, too."""
    counts = Counter(prompts[i] for i in rows)
    return [size for (_, size), count in counts.items() for _ in range(count - 1)]


def computed_tokens(rows: Sequence[int], lengths: Sequence[int], prompts: Prompts) -> int:
    """Count the tokens of the sequences ``rows`` with each of their prompts counted once."""
    return sum(lengths[i] for i in rows) - sum(repeated_prompts(rows, prompts))


def _shared(
    by_length: Sequence[int], lengths: Sequence[int], prompts: Prompts, token_budget: int, ranks: int
) -> list[list[list[int]]]:
    """Return each rank's micro-batches, with the answers to a prompt in as few as the budget allows."""
    groups = sorted(_by_prompt(by_length, prompts), key=lambda rows: -computed_tokens(rows, lengths, prompts))
    # a prompt is rather computed on several ranks than one of them left without work
    shares = [[i for group in groups[rank::ranks] for i in group] for rank in range(ranks)]
    if len(groups) < ranks:
        shares = [list(by_length[rank::ranks]) for rank in range(ranks)]
    return [_pack_prompts(share, lengths, prompts, token_budget) for share in shares]


def _by_prompt(rows: Sequence[int], prompts: Prompts) -> list[list[int]]:
    members: dict[tuple[int, int], list[int]] = {}
    for i in rows:
        members.setdefault(prompts[i], []).append(i)
    return list(members.values())


def _pack_prompts(rows: Sequence[int], lengths: Sequence[int], prompts: Prompts, token_budget: int) -> list[list[int]]:
    pieces = []
    for group in _by_prompt(rows, prompts):
        _, size = prompts[group[0]]
        answers = [lengths[i] - size for i in group]
        pieces += [[group[p] for p in part] for part in _pack(range(len(group)), answers, token_budget - size)]
    sizes = [computed_tokens(piece, lengths, prompts) for piece in pieces]
    largest_first = sorted(range(len(pieces)), key=lambda p: -sizes[p])
    return [[i for p in part for i in pieces[p]] for part in _pack(largest_first, sizes, token_budget)]
