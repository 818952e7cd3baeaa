"""choice: the best epoch, and what decides where there are no validation problems."""

from typing import Any

from oapl_core.evaluation.measures import ON, WARNING, basis, best
from oapl_core.tables import is_correct


def answers(problem: str, *rewards: float | None) -> list[dict[str, Any]]:
    return [{"problem_id": problem, "reward": reward, "correct": is_correct(reward)} for reward in rewards]


def test_the_best_epoch_has_the_highest_mean_and_of_equals_the_first() -> None:
    worse, good, same = answers("a", 0.0, 0.0), answers("a", 1.0, 0.0), answers("a", 0.0, 1.0)
    assert best({"1": worse, "2": good, "3": same}) == "2"
    assert best({"3": same, "2": good}) == "3"


def test_only_a_choice_on_validation_problems_needs_validation_problems() -> None:
    assert basis("validation", has_validation=True, epochs=4) == "validation"
    assert basis("validation", has_validation=False, epochs=4) == "last"
    assert basis("heldout", has_validation=False, epochs=4) == "heldout"
    assert basis("last", has_validation=True, epochs=4) == "last"


def test_of_a_single_epoch_the_reported_problems_choose_nothing() -> None:
    assert basis("heldout", has_validation=True, epochs=1) == "last"


def test_what_was_chosen_on_the_reported_problems_is_called_that() -> None:
    assert ON["heldout"] == WARNING
    assert "reported" in WARNING
