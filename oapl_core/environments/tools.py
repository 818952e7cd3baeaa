"""An environment made of functions: each call of a turn is run, and a turn without a call is the answer."""

import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from oapl_core.environments.protocol import Action, Observation, ToolCall, ToolError, ToolResult


class ToolEnvironment:
    """Derive from it and name functions in ``tools``; they return text and raise ToolError at a wrong argument."""

    is_judge = False

    def tools(self) -> Sequence[Callable[..., str]]:
        """Functions that the model may call."""
        raise NotImplementedError

    def reset(self, problem: Mapping[str, Any], seed: int) -> None:
        """Nothing is needed by default."""

    def close(self) -> None:
        """Nothing is held by default."""

    def step(self, action: Action) -> Observation:
        """Run the calls in order; without one the trajectory is over."""
        if not action.calls:
            return Observation(is_done=True)
        return Observation(tuple(map(self._result, action.calls)))

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
        named = {tool.__name__: tool for tool in self.tools()}
        if call.name not in named:
            raise ToolError(f"there is no tool {call.name!r}; the tools are {', '.join(named)}")
        try:  # before it runs: a TypeError of the function's own is no fault of the model
            inspect.signature(named[call.name]).bind(**call.arguments)
        except TypeError as error:
            raise ToolError(str(error)) from None
        return named[call.name](**call.arguments)
