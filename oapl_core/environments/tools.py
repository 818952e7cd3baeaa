"""An environment made of functions: each call of a turn is run, and a turn without a call is the answer."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from oapl_core.environments.protocol import Action, Observation, ToolCall, ToolError, ToolResult, tools_of


class ToolEnvironment:
    """Derive from it and name functions in ``tools``; they return text and raise ToolError at a wrong argument."""

    is_judge = False
    _ends = math.inf
    """When the time of the turn's calls is over, by the monotonic clock."""

    def tools(self) -> Sequence[Callable[..., str]]:
        """List the functions that the model may call."""
        raise NotImplementedError

    def reset(self, problem: Mapping[str, Any], seed: int) -> None:
        """Do nothing: tools need no problem by default."""

    def close(self) -> None:
        """Do nothing: there is nothing to close by default."""

    def step(self, action: Action) -> Observation:
        """Run the calls in order while the turn has time; without one the trajectory is over."""
        if not action.calls:
            return Observation(is_done=True)
        self._ends = time.monotonic() + action.seconds
        return Observation(tuple(map(self._result, action.calls)))

    @property
    def seconds_left(self) -> float:
        """Rest of the turn's time, for a tool that can take less than it would. Seconds."""
        return max(0.0, self._ends - time.monotonic())

    def _result(self, call: ToolCall) -> ToolResult:
        start = time.monotonic()
        try:
            text, is_error = self._run(call), False
        except ToolError as error:
            text, is_error = f"Error: {error}", True
        return ToolResult(call, text, is_error, time.monotonic() - start)

    def _run(self, call: ToolCall) -> str:
        if call.error:
            raise ToolError(call.error)
        if not self.seconds_left:
            raise ToolError("it was not run: the calls before it took the turn's time")
        named = {tool.__name__: tool for tool in tools_of(self)}
        text = named[call.name](**call.arguments)
        if not isinstance(text, str):
            raise TypeError(f"the tool {call.name} returned {type(text).__name__}, not a text")
        return text
