"""Which statements are the same, nearly the same, or contain one another."""

import random
import string

from oapl_core.problems.likeness import NEAR_WORDS, NearDuplicates, Overlap, pieces
from oapl_core.problems.sameness import same

WORDS = [consonant + vowel for consonant in string.ascii_lowercase for vowel in "aeiou"]


def text(seed: int, words: int = 120) -> str:
    """Made-up words that another seed hardly shares."""
    return " ".join(f"{random.Random(f'{seed} {i}').choice(WORDS)}{seed}{i}" for i in range(words))


def changed(statement: str, share: float) -> str:
    """The statement with so many of its words replaced, spread evenly."""
    words = statement.split()
    for index in range(0, len(words), max(1, round(1 / share)) if share else len(words) + 1):
        words[index] = f"other{index}"
    return " ".join(words)


def test_case_spaces_and_line_breaks_do_not_make_a_difference_and_words_do() -> None:
    assert same("Add  two\nNumbers.") == same("add two numbers .")
    assert same("Add two numbers.") != same("Add 2 numbers.")


def test_pieces_are_sets_of_runs_of_words() -> None:
    def near(statement: str) -> list[int]:
        found: list[int] = pieces(statement, NEAR_WORDS).tolist()
        return found

    assert len(near("a b c d e f g")) == 3
    assert near("a b c d e a b c d e") == near("e a b c d e a b c d") != near("a b c d e")
    assert near("a b c d e") == near("A b c D e")
    assert near("e d c b a") != near("a b c d e")
    assert near("a b") == near("a  b") != near("b a")
    assert near("") == []


def test_a_nearly_equal_statement_is_found_among_many_and_a_different_one_is_not() -> None:
    near = NearDuplicates(0.8)
    for seed in range(200):
        near.add(f"p{seed}", text(seed))
    for seed in range(0, 200, 20):
        assert near.find(text(seed).upper()) == f"p{seed}"
        assert near.find(text(seed) + " And one more sentence.") == f"p{seed}"
        assert near.find(changed(text(seed), 0.01)) == f"p{seed}"
        assert near.find(changed(text(seed), 0.1)) is None
        assert near.find(text(seed + 1000)) is None


def test_one_statement_inside_another_is_not_near_but_overlaps() -> None:
    near, overlap = NearDuplicates(0.8), Overlap([("small", text(1, 40))])
    near.add("small", text(1, 40))
    longer = f"{text(2)} {text(1, 40)} {text(3)}"
    assert near.find(longer) is None
    assert overlap.largest(longer) == (1.0, "small")


def test_overlap_is_the_share_of_the_evaluation_problem() -> None:
    overlap = Overlap([("a", text(1, 112)), ("b", text(2, 112))])
    half = " ".join(text(1, 112).split()[:62])
    share, name = overlap.largest(half)
    assert (share, name) == (0.5, "a")
    assert overlap.largest(text(9)) == (0.0, None)


def test_boilerplate_of_many_evaluation_problems_is_no_overlap() -> None:
    boilerplate = "The first line contains one integer t, the number of test cases. Each test case has a line."
    overlap = Overlap([(f"e{i}", f"{text(i, 60)} {boilerplate}") for i in range(6)])
    assert overlap.largest(f"{text(99, 60)} {boilerplate}")[0] == 0.0
    assert overlap.largest(f"{text(3, 60)} {boilerplate}") == (1.0, "e3")


def test_the_same_evaluation_problem_in_several_sets_is_not_boilerplate() -> None:
    overlap = Overlap([(f"set{i}", text(1, 60)) for i in range(9)])
    assert overlap.largest(text(1, 60))[0] == 1.0
