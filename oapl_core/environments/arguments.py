"""Arguments that a model gives to a tool, checked against the types that its schema is made of. Pure.

One place for all tools: what passes here has the parameters' names and types, and what does not is told to the model.
"""

import inspect
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, get_type_hints

from pydantic import ConfigDict, PydanticUserError, TypeAdapter, ValidationError

from oapl_core.environments.protocol import ToolError

_TOLD_CHARACTERS = 200
"""Characters that are kept of a complaint: a name that the model made up may be of any length."""


def fitted(tool: Callable[..., str], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Convert ``arguments`` to the parameters' types: a number that is written as a text becomes a number.

    NaN and infinity are none: a tool that computed with them would fail, or reward with them, as the model likes.

    Raises:
        ToolError: one is missing, too many, or of another type.
    """
    try:
        inspect.signature(tool).bind(**arguments)
    except TypeError as error:
        raise ToolError(str(error)[:_TOLD_CHARACTERS]) from None
    types = types_of(tool)
    return {name: _fitted(name, value, types.get(name)) for name, value in arguments.items()}


def _fitted(name: str, value: Any, kind: "TypeAdapter[Any] | None") -> Any:
    try:
        return value if kind is None else kind.validate_python(value)
    except (ValidationError, RecursionError) as error:
        why = error.errors()[0]["msg"] if isinstance(error, ValidationError) else "is nested too deeply"
        raise ToolError(f"argument `{name}`: {why}"[:_TOLD_CHARACTERS]) from None


def types_of(tool: Callable[..., str]) -> "dict[str, TypeAdapter[Any]]":
    """Return the type of each parameter of a tool. Raises whatever a type that cannot be checked does."""
    return _types(getattr(tool, "__func__", tool))


@lru_cache(256)
def _types(tool: Callable[..., str]) -> "dict[str, TypeAdapter[Any]]":
    return {name: _adapter(kind) for name, kind in get_type_hints(tool).items() if name != "return"}


def _adapter(kind: Any) -> "TypeAdapter[Any]":
    try:
        return TypeAdapter(kind, config=ConfigDict(allow_inf_nan=False))
    except PydanticUserError:  # a class that has settings of its own
        return TypeAdapter(kind)
