"""Reward functions, Rubrics and Tasks of `verifiers` as `[reward] function`.

Without the package, which does not install beside every engine, its functions are tested; with it the real classes:
0.1.8 to 0.3.1 have Rubrics, 0.4 has Tasks.
"""

import asyncio
import importlib
import json
from typing import Any

import pytest

from oapl_extras.judge.rubrics import reward_of, reward_of_task

PROBLEM = {
    "problem_id": "p",
    "statement": "2 + 2?",
    "answer": "4",
    "source": "sums",
    "info": json.dumps({"bonus": 0.5}),
}
VERDICT = {"reward": 1.0, "outcome": "passed"}


def exact(completion: list[dict[str, str]], answer: str, **_rest: Any) -> float:
    return float(completion[-1]["content"] == answer)


async def bonus(info: dict[str, float], prompt: list[dict[str, str]]) -> float:
    await asyncio.sleep(0)
    assert prompt == [{"role": "user", "content": "2 + 2?"}]
    return info["bonus"]


def state_and_task(state: dict[str, Any], task: str) -> int:
    assert state["completion"][0]["role"] == "assistant" and state["answer"] == "4"
    return len(task)


def fails(completion: Any) -> float:
    raise KeyError("nothing there")


def test_functions_get_the_arguments_that_they_name_and_are_summed_by_weight() -> None:
    score = reward_of([exact, bonus, state_and_task], [1.0, 2.0, 0.0])
    assert score(PROBLEM, "4", VERDICT) == (2.0, {"exact": 1.0, "bonus": 0.5, "state_and_task": 4.0})
    assert score(PROBLEM, "5", VERDICT) == (1.0, {"exact": 0.0, "bonus": 0.5, "state_and_task": 4.0})
    assert reward_of(exact)(PROBLEM, "4", VERDICT) == (1.0, {"exact": 1.0})
    assert reward_of(lambda verdict: verdict["reward"])(PROBLEM, "", VERDICT)[0] == 1.0


def test_what_a_function_does_wrong_is_no_0() -> None:
    with pytest.raises(KeyError, match="nothing there"):
        reward_of([exact, fails])(PROBLEM, "4", VERDICT)
    with pytest.raises(TypeError):
        reward_of(lambda answer: [1.0])(PROBLEM, "4", VERDICT)


def test_what_cannot_be_scored_is_refused_where_it_is_imported() -> None:
    def relative(completions: Any) -> list[float]:
        return [0.0]

    with pytest.raises(ValueError, match="relative scores a group of answers at once"):
        reward_of([exact, relative])
    with pytest.raises(ValueError, match="two functions of the rubric are called exact"):
        reward_of([exact, exact])
    with pytest.raises(ValueError, match="2 weights for 1 functions"):
        reward_of(exact, [1.0, 2.0])
    with pytest.raises(ValueError, match="has no function"):
        reward_of([])


def real(module: str, name: str) -> Any:
    """A class of the installed package, or the test is skipped."""
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError):
        pytest.skip(f"no {name} of verifiers here")


def test_a_real_rubric_and_a_group_of_them() -> None:
    rubric, group = real("verifiers", "Rubric"), real("verifiers", "RubricGroup")

    def parsed(parser: Any, completion: Any, answer: str) -> float:
        return float(parser.parse_answer(completion) == answer)

    one = rubric(funcs=[exact, parsed], weights=[1.0, 0.25])
    score = reward_of(group([one, rubric(funcs=[bonus])]))
    assert score(PROBLEM, "4", VERDICT) == (1.75, {"exact": 1.0, "parsed": 1.0, "bonus": 0.5})
    own = {"prompt": [{"role": "user", "content": "2 + 2?"}], "completion": [{"role": "assistant", "content": "4"}]}
    state = real("verifiers.types", "State")(**own, answer="4", info={"bonus": 0.5}, task="sums", timing={})
    asyncio.run(one.score_rollout(state))
    assert reward_of(one)(PROBLEM, "4", VERDICT)[0] == state["reward"], "what the Rubric says itself"
    with pytest.raises(KeyError):
        reward_of(rubric(funcs=[fails]))(PROBLEM, "4", VERDICT)


def test_a_real_task() -> None:
    data, task = real("verifiers.v1", "TaskData"), real("verifiers.v1", "Task")
    vf = importlib.import_module("verifiers.v1")
    if not hasattr(task, "hooks"):
        pytest.skip("before 0.4 a Task was another thing")

    class Sum(data):  # type: ignore[misc, valid-type]
        answer: str = ""

    class Sums(task[Sum]):  # type: ignore[misc, valid-type]
        @vf.reward(weight=2.0)  # type: ignore[untyped-decorator]
        async def right(self, task: Any, trace: Any) -> float:
            return float(trace.last_reply == task.answer)

        @vf.metric  # type: ignore[untyped-decorator]
        async def size(self, trace: Any) -> float:
            return float(len(trace.last_reply))

    class InABox(Sums):
        @vf.reward  # type: ignore[untyped-decorator]
        async def built(self, runtime: Any) -> float:
            return 1.0

    def made(kind: Any) -> Any:
        return reward_of_task(lambda row: kind(Sum(prompt=row["statement"], answer=row["answer"])))

    assert made(Sums)(PROBLEM, "4", VERDICT) == (2.0, {"right": 1.0, "size": 1.0})
    assert made(Sums)(PROBLEM, "55", VERDICT) == (0.0, {"right": 0.0, "size": 2.0})
    with pytest.raises(ValueError, match="built wants the runtime"):
        made(InABox)(PROBLEM, "4", VERDICT)
