"""What an environment is: it gets a problem, then what the model says in each turn, and answers. Pure.

One object serves one trajectory. It runs in a thread of the sampling process: waiting there costs nothing, computing
there takes time from the engine. It is pickled after every turn, so that a killed run continues with the next one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable


class ToolError(Exception):
    """Misuse of a tool by the model: the message becomes the call's result. Any other exception is our failure."""


@dataclass(frozen=True)
class ToolCall:
    """A call that a turn makes."""

    name: str
    arguments: Mapping[str, Any]
    """By the names of the tool's parameters."""
    written: str
    """JSON of the arguments, or what stands there if it is none."""
    error: str = ""
    """Why it cannot be run: it cannot be read, or there is no such tool, or its arguments do not fit; empty: it can."""


@dataclass(frozen=True)
class Action:
    """What the model said in a turn."""

    text: str
    """Decoded, without end tokens and stop text."""
    calls: tuple[ToolCall, ...] = ()
    """In the order in which they are written, outside of its thinking."""
    turn: int = 0
    """Counted from 0."""
    seconds: float = math.inf
    """Wall time that all calls of the turn have together."""


@dataclass(frozen=True)
class ToolResult:
    """What a call gave."""

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
    """What each of them takes, in words."""


@runtime_checkable
class Bounded(Protocol):
    """An environment that holds memory or files between its turns."""

    def fitting(self, processes: int = 1) -> TrajectoryRoom:
        """The room here, where so many processes sample."""
        ...


@runtime_checkable
class Environment(Protocol):
    """What answers one trajectory. It can be pickled, and draws at random by its seed alone.

    Whatever a method raises is a failure of the environment: the trajectory has no reward then (outcome
    `verifier_error`), never 0. Errors of the model are results.
    """

    is_judge: bool
    """Whether the sum of its rewards is what a trajectory earns. Else the verifier judges the last turn."""

    def tools(self) -> Sequence[Callable[..., str]]:
        """Functions that the model may call, with types and a docstring of Google's form, for the chat template.

        A plain list in place of the method will do.
        """
        ...

    def reset(self, problem: Mapping[str, Any], seed: int) -> None:
        """Begin: ``problem`` is its row of problems.parquet without the tests; ``seed`` is the rollout's."""
        ...

    def step(self, action: Action) -> Observation:
        """Answer a turn."""
        ...

    def close(self) -> None:
        """The trajectory is over, or given up: end what was started."""
        ...


def tools_of(environment: Environment) -> list[Callable[..., str]]:
    """The functions, whether ``tools`` is the method or a plain list.

    Raises:
        TypeError: it is neither.
    """
    given: Any = environment.tools
    found = given() if callable(given) else given
    if not isinstance(found, list | tuple) or not all(map(callable, found)):
        raise TypeError("`tools` must be a list of functions, or a method that returns one")
    # in the body of a class its own functions have no `self` yet
    own = vars(type(environment)).values()
    return [getattr(environment, one.__name__) if one in own else one for one in found]
