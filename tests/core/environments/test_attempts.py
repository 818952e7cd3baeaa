"""Tasks of reasoning-gym in several attempts."""

import pickle
from importlib.util import find_spec

import pytest

from oapl_core.environments.attempts import Attempts
from oapl_core.environments.protocol import Action, Environment
from oapl_extras.problem_sets.curation import Tally
from oapl_extras.problem_sets.reasoning_gym import task_problems

pytestmark = pytest.mark.skipif(find_spec("reasoning_gym") is None, reason="reasoning-gym is not installed")


def test_a_wrong_answer_may_be_given_again_and_the_task_judges() -> None:
    (problem,) = task_problems("chain_sum", {}, 1, 1, "train", Tally())
    environment = Attempts(attempts=3, cost=0.25)
    assert isinstance(environment, Environment)
    environment.reset(problem, 0)
    first = environment.step(Action("I guess \\boxed{-1}"))
    assert not first.is_done
    assert "(2 left)" in str(first.text)
    environment = pickle.loads(pickle.dumps(environment))
    right = environment.step(Action(f"\\boxed{{{problem['answer']}}}"))
    assert (right.is_done, right.reward) == (True, 0.75)


def test_without_attempts_left_it_is_over() -> None:
    (problem,) = task_problems("chain_sum", {}, 1, 1, "train", Tally())
    environment = Attempts(attempts=2)
    environment.reset(problem, 0)
    assert "no answer in \\boxed{}" in str(environment.step(Action("hm")).text)
    last = environment.step(Action("hm"))
    assert last.is_done
    assert last.reward is not None
    assert last.reward < 1.0
