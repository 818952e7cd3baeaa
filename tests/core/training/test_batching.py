"""Epoch order, global batches, micro-batches: nothing lost, nothing doubled, budgets kept, ranks in step."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oapl_core.training.layouts.batching import epoch_order, global_batches, micro_batches, packed, padded

LENGTHS = st.lists(st.integers(1, 200), min_size=1, max_size=80)


@given(LENGTHS, st.integers(1, 30), st.integers(1, 500), st.integers(1, 5), st.integers(1, 9))
def test_an_epoch_visits_every_sequence_exactly_once(
    lengths: list[int], batch_size: int, budget: int, ranks: int, epoch: int
) -> None:
    order = epoch_order(len(lengths), seed=3, round_number=1, epoch=epoch)
    seen = [
        row
        for batch in global_batches(order, batch_size)
        for share in micro_batches(batch, lengths, budget, ranks)
        for rows in share
        for row in rows
    ]
    assert sorted(seen) == list(range(len(lengths)))


@given(LENGTHS, st.integers(1, 500), st.integers(1, 5))
def test_no_micro_batch_exceeds_the_budget_unless_it_is_one_sequence(
    lengths: list[int], budget: int, ranks: int
) -> None:
    for share in micro_batches(range(len(lengths)), lengths, budget, ranks):
        for rows in share:
            padded = len(rows) * max((lengths[i] for i in rows), default=0)
            assert padded <= budget or len(rows) == 1


@given(LENGTHS, st.integers(1, 500), st.integers(1, 5))
def test_packing_never_splits_or_loses_a_sequence_and_keeps_the_budget(
    lengths: list[int], budget: int, ranks: int
) -> None:
    shares = micro_batches(range(len(lengths)), lengths, budget, ranks, packed)
    assert len({len(share) for share in shares}) == 1
    assert sorted(i for share in shares for rows in share for i in rows) == list(range(len(lengths)))
    for share in shares:
        for rows in share:
            assert sum(lengths[i] for i in rows) <= budget or len(rows) == 1


@given(LENGTHS, st.integers(1, 500))
def test_packing_needs_no_more_micro_batches_than_padding(lengths: list[int], budget: int) -> None:
    fewer, more = (micro_batches(range(len(lengths)), lengths, budget, deal=deal)[0] for deal in (packed, padded))
    assert len(fewer) <= len(more)


@given(LENGTHS, st.integers(1, 500), st.integers(1, 5))
def test_every_rank_runs_equally_many_micro_batches(lengths: list[int], budget: int, ranks: int) -> None:
    shares = micro_batches(range(len(lengths)), lengths, budget, ranks)
    assert len(shares) == ranks
    assert len({len(share) for share in shares}) == 1
    sizes = [sum(map(len, share)) for share in shares]
    assert max(sizes) - min(sizes) <= 1


@given(LENGTHS, st.integers(1, 500))
def test_neighbours_in_a_micro_batch_have_neighbouring_lengths(lengths: list[int], budget: int) -> None:
    (share,) = micro_batches(range(len(lengths)), lengths, budget)
    flat = [lengths[i] for rows in share for i in rows]
    assert flat == sorted(lengths, reverse=True)


@given(LENGTHS, st.integers(1, 30), st.randoms(use_true_random=False))
def test_a_batch_is_cut_alike_whatever_its_order(lengths: list[int], budget: int, rng: object) -> None:
    rows = list(range(len(lengths)))
    expected = micro_batches(rows, lengths, budget, 2)
    rng.shuffle(rows)  # type: ignore[attr-defined]
    assert micro_batches(rows, lengths, budget, 2) == expected


def test_the_order_depends_on_seed_round_and_epoch_only() -> None:
    first = epoch_order(50, 7, 0, 1)
    assert first == epoch_order(50, 7, 0, 1)
    others = [epoch_order(50, 8, 0, 1), epoch_order(50, 7, 1, 1), epoch_order(50, 7, 0, 2), list(range(50))]
    assert all(first != other for other in others)


def test_the_last_batch_is_short_not_dropped() -> None:
    assert [len(batch) for batch in global_batches(range(10), 4)] == [4, 4, 2]


@pytest.mark.parametrize("budget_and_ranks", [(0, 1), (1, 0)])
def test_impossible_budgets_and_ranks_are_refused(budget_and_ranks: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        micro_batches([0], [1], *budget_and_ranks)


def test_impossible_batch_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="batch_size"):
        global_batches([0], 0)
