"""Tasks of reasoning-gym in several attempts."""

import pickle
from importlib.util import find_spec

import pytest

from oapl_core.environments import attempts
from oapl_core.environments.attempts import Attempts
from oapl_core.environments.making import maker
from oapl_core.environments.protocol import Action, Environment
from oapl_core.settings.environment import EnvironmentConfig
from oapl_core.verdicts import reasoning_gym
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
    assert right.is_done
    # a turn earns what it changed; the sum is the score of the last answer, less the cost
    assert float(first.reward or 0.0) + float(right.reward or 0.0) == 0.75


def test_without_attempts_left_it_is_over() -> None:
    (problem,) = task_problems("chain_sum", {}, 1, 1, "train", Tally())
    environment = Attempts(attempts=2)
    environment.reset(problem, 0)
    assert "no answer in \\boxed{}" in str(environment.step(Action("hm")).text)
    last = environment.step(Action("hm"))
    assert last.is_done
    assert last.reward is not None
    assert last.reward < 1.0


def test_a_trajectory_that_ends_elsewhere_has_the_score_of_its_last_answer() -> None:
    (problem,) = task_problems("spell_backward", {"min_word_len": 6}, 1, 1, "train", Tally())
    environment = Attempts(attempts=5, cost=0.125)
    environment.reset(problem, 0)
    half = problem["answer"][:3]
    rewards = [environment.step(Action(f"\\boxed{{{answer}}}")).reward for answer in ("?", half, half)]
    assert [type(reward) for reward in rewards] == [float] * 3
    from oapl_core.verdicts.reasoning_gym import score

    graded = score(problem, "", {"answer": half})
    assert 0.0 < graded < 1.0
    assert sum(filter(None, rewards)) == pytest.approx(graded - 2 * 0.125)


def test_an_answer_that_a_task_takes_for_ever_over_costs_its_own_trajectory_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (problem,) = task_problems("coin_flip", {}, 1, 1, "train", Tally())
    environment = Attempts()
    environment.reset(problem, 0)
    environment.step(Action("\\boxed{0.1}"))  # its process has started
    monkeypatch.setattr(attempts._SCORERS, "wall_s", 1.0)
    with pytest.raises(RuntimeError, match="took more than 1 s"):
        environment.step(Action("\\boxed{1e999999999}"))  # as a fraction: a number of so many digits
    assert environment.step(Action("\\boxed{0.1}")).text


def test_a_box_in_unfinished_thinking_is_no_answer() -> None:
    (problem,) = task_problems("chain_sum", {}, 1, 1, "train", Tally())
    environment = Attempts()
    environment.reset(problem, 0)
    thought = f"it may be \\boxed{{{problem['answer']}}}"
    assert "no answer" in str(environment.step(Action(thought, is_thinking=True)).text)
    assert environment.step(Action(f"{thought}</think>{thought}", is_thinking=True)).is_done


def test_what_an_earlier_version_kept_of_a_trajectory_is_continued() -> None:
    (problem,) = task_problems("chain_sum", {}, 1, 1, "train", Tally())
    environment = Attempts()
    environment.reset(problem, 0)
    vars(environment).pop("_told", None)
    kept = pickle.loads(pickle.dumps(environment))
    assert kept.step(Action(f"\\boxed{{{problem['answer']}}}")).reward == 1.0


def test_more_attempts_than_turns_are_allowed_as_each_turn_earns_its_part() -> None:
    made = maker(EnvironmentConfig(function="attempts", settings={"attempts": 5}, max_turns=4))()
    (problem,) = task_problems("chain_sum", {}, 1, 1, "train", Tally())
    made.reset(problem, 0)
    wrong = f"{problem['answer']}0"
    turns = [made.step(Action(text)) for text in ("none", "none", "none", f"\\boxed{{{wrong}}}")]
    assert not turns[-1].is_done
    assert sum(turn.reward or 0.0 for turn in turns) == reasoning_gym.score(problem, "", {"answer": wrong}) > 0
