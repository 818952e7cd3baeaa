"""Rewards in the form of `verifiers`: Rubrics, functions of (prompt, completion, answer, info, ...), and Tasks.

``score = reward_of(rubric)`` in a module of one's own is what `[reward] function` names (docs/rewards.md). Functions,
sync or async, get the arguments that they name. A Rubric has `funcs`, `weights` and `class_objects`: the interface
of `verifiers` 0.1.8 to 0.3.1 (`verifiers/rubrics/rubric.py`), which is not imported for it. Version 0.4 has no Rubrics
but Tasks with `@reward` methods over a trace (`verifiers/v1/task.py`): ``reward_of_task``.

A Rubric's own `score_rollout` counts a function that raises as 0. Here functions are called one by one, so that it
is a verifier error. Reads and writes nothing itself.
"""

import asyncio
import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

_OF_GROUPS = frozenset("states prompts completions answers tasks infos".split())


@dataclass(frozen=True)
class _Part:
    """A function of a rubric."""

    function: Callable[..., Any]
    weight: float
    rubric: Any
    """It belongs to; None if it stands for itself."""

    @property
    def name(self) -> str:
        return str(getattr(self.function, "__name__", type(self.function).__name__))

    def value(self, state: dict[str, Any]) -> float:
        """Return the function's value of a rollout. Raises what the function raises, and TypeError without a number."""
        objects = _objects(self.rubric, state)
        wanted = inspect.signature(self.function).parameters
        if not any(one.kind is one.VAR_KEYWORD for one in wanted.values()):
            objects = {name: value for name, value in objects.items() if name in wanted}
        found = self.function(**objects)
        # one loop for all calls: clients that a rubric holds belong to the loop in which they were first used
        return float(_runner().run(_awaited(found)) if inspect.isawaitable(found) else found)


_Score = Callable[[Mapping[str, Any], str, Mapping[str, Any]], tuple[float, dict[str, float]]]


def reward_of(rubric: Any, weights: Sequence[float] | None = None) -> _Score:
    """Make what `[reward] function` may name: the weighted sum, and a column for each function, by its name.

    ``rubric``: a Rubric, a RubricGroup, a function, or a list of functions with their ``weights`` (unset: 1 each). A
    weight of 0 makes a column only.

    Raises:
        ValueError: there is no function, two have one name, or one scores a whole group at once.
    """
    parts = list(_parts(rubric, weights))
    names = [part.name for part in parts]
    if not parts:
        raise ValueError("the rubric has no function")
    if double := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"two functions of the rubric are called {double}; each is a column")
    for part in parts:
        # an answer is judged by itself here: others of its group may not be sampled yet
        signature = inspect.signature(part.function)
        if _OF_GROUPS & set(signature.parameters):
            raise ValueError(f"{part.name} scores a group of answers at once; only single answers are scored here")

    def score(problem: Mapping[str, Any], response: str, verdict: Mapping[str, Any]) -> tuple[float, dict[str, float]]:
        state = _state(problem, response, verdict)
        columns = {part.name: part.value(state) for part in parts}
        return sum(part.weight * columns[part.name] for part in parts), columns

    return score


def reward_of_task(make: Callable[[Mapping[str, Any]], Any]) -> _Score:
    """Do as ``reward_of`` for a Task of `verifiers` 0.4: its rewards with their weights, its metrics as columns.

    ``make`` makes the Task of a problem, whose columns it is given (`info` as text). A method that wants the runtime
    that the answer was made in is refused with ValueError when it is met: here there is none.
    """
    from verifiers.v1.configs.agent import WireAgentConfig
    from verifiers.v1.graph import MessageNode
    from verifiers.v1.trace import AgentInfo, Trace, TraceTask
    from verifiers.v1.types import AssistantMessage, UserMessage

    def score(problem: Mapping[str, Any], response: str, _verdict: Mapping[str, Any]) -> tuple[float, dict[str, float]]:
        task = make(problem)
        for method in (*task.hooks("reward"), *task.hooks("metric")):
            # Task.score leaves these out without a word, and the reward would be another one
            wanted = inspect.signature(method).parameters.get("runtime")
            if wanted is not None and wanted.default is wanted.empty:
                raise ValueError(f"{method.__name__} wants the runtime of the answer; only texts are scored here")
        asked = MessageNode(message=UserMessage(content=problem["statement"]))
        said = MessageNode(parent=0, message=AssistantMessage(content=response), sampled=True)
        trace = Trace(
            task=TraceTask(type=type(task).__name__, data=task.data),
            agent=AgentInfo(config=WireAgentConfig()),
            nodes=[asked, said],
        )
        _runner().run(task.score(trace))
        return trace.reward, {name: one.score for name, one in trace.rewards.items()} | dict(trace.metrics)

    return score


def _parts(rubric: Any, weights: Sequence[float] | None) -> Iterator[_Part]:
    inner = getattr(rubric, "rubrics", None)
    if inner is not None:
        for one in inner:
            yield from _parts(one, None)
        return
    has_funcs = hasattr(rubric, "funcs")
    functions = rubric.funcs if has_funcs else [rubric] if callable(rubric) else rubric
    weights = rubric.weights if has_funcs else [1.0] * len(functions) if weights is None else weights
    if len(weights) != len(functions):
        raise ValueError(f"{len(weights)} weights for {len(functions)} functions")
    for function, weight in zip(functions, weights, strict=True):
        yield _Part(function, float(weight), rubric if has_funcs else None)


def _state(problem: Mapping[str, Any], response: str, verdict: Mapping[str, Any]) -> dict[str, Any]:
    """Make a rollout of one turn, with the keys that `verifiers` gives it; `verdict` is ours."""
    info = json.loads(problem.get("info") or "{}")
    given = {
        "prompt": [{"role": "user", "content": problem["statement"]}],
        "answer": problem.get("answer") or "",
        "info": info,
        "example_id": problem["problem_id"],
    }
    said = [{"role": "assistant", "content": response}]
    rest: dict[str, Any] = {
        "completion": said,
        "task": problem.get("source") or "",
        "trajectory": [],
        "metrics": {},
        "reward": None,
    }
    return {**given, "input": given, **rest, "verdict": dict(verdict)}


def _objects(rubric: Any, state: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments that a function may name."""
    if hasattr(rubric, "score_objects"):  # since 0.1.12; knows its own providers
        return {"verdict": state["verdict"], **rubric.score_objects(state)}
    names = ("prompt", "completion", "answer", "info", "task", "verdict")
    return {name: state[name] for name in names} | {"state": state} | getattr(rubric, "class_objects", {})


@cache
def _runner() -> asyncio.Runner:
    return asyncio.Runner()


async def _awaited(found: Any) -> Any:
    return await found
