"""Protocol of an environment: it gets a problem, then the model's text of each turn, and answers. Pure.

One object serves one trajectory. It runs in a thread of the sampling process: waiting there costs nothing, computing
there takes time from the engine. It is pickled after every turn, so that a killed run continues with the next one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable


class ToolError(Exception):
    """Mistake of the model with a tool; the model gets it as the call's result. It gets no other exception."""


@dataclass(frozen=True)
class ToolCall:
    """A call that a turn makes."""

    name: str
    arguments: Mapping[str, Any]
    """Arguments by the names of the tool's parameters."""
    written: str
    """JSON of the arguments, or what stands there if it is none."""
    error: str = ""
    """Why it cannot be run: it cannot be read, or there is no such tool, or its arguments do not fit; empty: it can."""


@dataclass(frozen=True)
class Action:
    """Text and calls of one turn of the model."""

    text: str
    """Text of the turn, decoded, without end tokens and stop text."""
    calls: tuple[ToolCall, ...] = ()
    """Calls in the order in which they are written, outside of its thinking."""
    turn: int = 0
    """Number of the turn, counted from 0."""
    seconds: float = math.inf
    """Wall time that all calls of the turn have together."""
    is_thinking: bool = False
    """Whether the turn's prompt ends inside of <think>, so that all up to </think> is thought."""


@dataclass(frozen=True)
class ToolResult:
    """Result of one call of a tool."""

    call: ToolCall
    text: str
    is_error: bool = False
    """The model called it wrongly."""
    seconds: float = 0.0
    """Wall time."""


@dataclass(frozen=True)
class Observation:
    """The environment's answer to a turn."""

    results: tuple[ToolResult, ...] = ()
    """Shown to the model as the tools' turns."""
    text: str | None = None
    """Shown as a user's turn behind them; None: nothing is."""
    is_done: bool = False
    """The trajectory is over, and nothing of this is shown."""
    reward: float | None = None
    """For this turn; counts where the environment is a judge."""


@dataclass(frozen=True)
class TrajectoryRoom:
    """How many trajectories fit on a machine at once."""

    trajectories: int
    why: str
    """Memory and descriptors that each of them takes, in words."""


@runtime_checkable
class Bounded(Protocol):
    """An environment that holds memory or files between its turns."""

    def fitting(self, processes: int = 1) -> TrajectoryRoom:
        """Return the room on this machine, where so many processes sample."""
        ...


@runtime_checkable
class Environment(Protocol):
    """Environment of one trajectory. It can be pickled, and draws at random by its seed alone.

    Whatever a method raises is a failure of the environment: the trajectory has no reward then (outcome
    `verifier_error`), never 0. Errors of the model are results.
    """

    is_judge: bool
    """Whether the sum of its rewards is what a trajectory earns. Else the verifier judges the last turn."""

    def tools(self) -> Sequence[Callable[..., str]]:
        """List the functions that the model may call, with types and a docstring of Google's form, for the chat
        template.

        A plain list in place of the method will do.
        """
        ...

    def reset(self, problem: Mapping[str, Any], seed: int) -> None:
        """Begin: ``problem`` is its row of problems.parquet without the tests; ``seed`` is the rollout's."""
        ...

    def step(self, action: Action) -> Observation:
        """Answer one turn of the model."""
        ...

    def close(self) -> None:
        """End everything that was started: the trajectory is over, or given up."""
        ...


def tools_of(environment: Environment) -> list[Callable[..., str]]:
    """Return the tools, whether ``tools`` is the method or a plain list.

    Raises:
        TypeError: it is neither.
    """
    given: Any = environment.tools
    tools = given() if callable(given) else given
    if not isinstance(tools, list | tuple) or not all(map(callable, tools)):
        raise TypeError("`tools` must be a list of functions, or a method that returns one")
    # in the body of a class its own functions have no `self` yet
    own = vars(type(environment)).values()
    return [getattr(environment, one.__name__) if one in own else one for one in tools]
