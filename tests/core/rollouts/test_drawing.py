"""Which problems a round samples: subsets are independent of each other, a walk repeats nothing before its end."""

from collections import Counter
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oapl_core.rollouts.drawing import Chosen, choose_problems
from oapl_core.rollouts.drawing import drawn as subset
from oapl_core.rollouts.walking import walk as next_ones
from oapl_core.rollouts.walking import walked
from oapl_core.settings.rounds import RoundConfig

NAMES = [f"p{i:02d}" for i in range(23)]


def drawn(names: Sequence[str], rounds: Sequence[RoundConfig], number: int, seed: int) -> list[str]:
    one = rounds[number]
    if one.draw == "walk":
        return next_ones(names, rounds, number, seed)
    return subset(names, one.problems or len(names), number, seed)


def walk(sizes: list[int], names: list[str] = NAMES, seed: int = 0) -> list[list[str]]:
    rounds = [RoundConfig(problems=size, draw="walk") for size in sizes]
    return [drawn(names, rounds, number, seed) for number in range(len(sizes))]


@given(st.lists(st.integers(1, 30), min_size=1, max_size=12), st.integers(0, 5))
def test_a_walk_meets_every_problem_equally_often_and_none_twice_in_a_round(sizes: list[int], seed: int) -> None:
    counts: Counter[str] = Counter(dict.fromkeys(NAMES, 0))
    for size, found in zip(sizes, walk(sizes, seed=seed), strict=True):
        assert len(set(found)) == len(found) == min(size, len(NAMES))
        counts.update(found)
        # the tail of one pass and the head of the next meet in a round, so two passes may be open at once
        assert max(counts.values()) - min(counts.values()) <= 2
    if sum(min(size, len(NAMES)) for size in sizes) <= len(NAMES):
        assert max(counts.values()) <= 1


def test_whole_passes_meet_every_problem_once_each() -> None:
    sizes = (5, 5, 5, 8)
    found = walk([*sizes, *sizes])
    for one_pass in (found[:4], found[4:]):
        assert sorted(name for names in one_pass for name in names) == NAMES
    assert found[0] != found[4], "each pass has an order of its own"


def test_a_random_round_is_a_subset_that_no_other_round_moves() -> None:
    alone = [RoundConfig(), RoundConfig(problems=7)]
    beside = [RoundConfig(problems=3, draw="walk"), RoundConfig(problems=7), RoundConfig(problems=3, draw="walk")]
    assert len(drawn(NAMES, alone, 1, 0)) == 7
    assert drawn(NAMES, alone, 1, 0) == drawn(NAMES, beside, 1, 0) != drawn(NAMES, alone, 1, 1)
    assert not set(drawn(NAMES, beside, 0, 0)) & set(drawn(NAMES, beside, 2, 0)), "the walk goes on past it"


def test_the_order_of_the_file_and_what_comes_later_do_not_matter() -> None:
    assert set(walk([4, 4, 4])[1]) == set(walk([4, 4], names=NAMES[::-1])[1])
    assert walk([4, 4, 4])[:2] == walk([4, 4, 9])[:2]


@pytest.mark.parametrize("draw", ["random", "walk"])
def test_chosen_problems_keep_the_order_of_the_file(draw: str) -> None:
    found = drawn(NAMES, [RoundConfig.model_validate({"problems": 9, "draw": draw})], 0, 3)
    assert found == sorted(found)


def test_a_round_of_the_walk_depends_on_the_sizes_before_it() -> None:
    rounds = [RoundConfig(problems=4, draw="walk"), RoundConfig(problems=5), RoundConfig(problems=6, draw="walk")]
    assert walked(rounds, 2) == [4]


def last(run: Any, number: int, names: Sequence[str], _is_first: bool) -> Chosen:
    """A draw of one's own."""
    return Chosen(names[-run.config.rounds[number].problems :])


def test_a_draw_of_ones_own_is_found_and_rollouts_depend_on_what_it_chose() -> None:
    rounds = [RoundConfig(problems=size, draw=f"{__name__}:last") for size in (2, 3)]
    run: Any = SimpleNamespace(config=SimpleNamespace(rounds=rounds, seed=0))
    two, three = (choose_problems(run, number, NAMES) for number in (0, 1))
    assert (two.problems, three.problems) == (NAMES[-2:], NAMES[-3:])
    assert two.settings.keys() == {"drawn"} and two.settings != three.settings
    with pytest.raises(ValueError, match="there is no draw 'nothing'; known are random, walk, difficulty"):
        RoundConfig(draw="nothing")
