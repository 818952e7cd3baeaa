"""Values that go out as the arguments of their constructor: numbers, bytes, times, ranges, arrays of numpy. Pure."""

from __future__ import annotations

import datetime
import decimal
import fractions
from collections.abc import Callable
from typing import Any

_NUMPY_KINDS = "?biufcSU"
_TIMES = {datetime.datetime: "datetime", datetime.date: "date", datetime.time: "time"}


def arguments_of(value: Any) -> list[Any] | None:
    """A node for `value`, its tag first; None if it is of no such class."""
    kind = type(value)
    if kind is complex:
        return ["complex", value.real, value.imag]
    if kind is bytes or kind is bytearray:
        return [kind.__name__, value.hex()]
    if kind is range:
        return ["range", value.start, value.stop, value.step]
    if kind is fractions.Fraction:
        return ["Fraction", value.numerator, value.denominator]
    if kind is decimal.Decimal:
        return ["Decimal", str(value)]
    if kind in _TIMES:
        return [_TIMES[kind], value.isoformat()]
    if kind is datetime.timedelta:
        return ["timedelta", value.days, value.seconds, value.microseconds]
    if value is NotImplemented or value is Ellipsis:
        return ["constant", repr(value)]
    if kind.__module__ == "numpy" and kind.__name__ == "ndarray" and value.dtype.kind in _NUMPY_KINDS:
        return ["ndarray", value.dtype.str, list(value.shape), value.tobytes().hex()]
    return None


def construct(tag: str) -> Callable[..., Any] | None:
    """What makes the value from the rest of the node; None for another tag."""
    return _MAKERS.get(tag)


def _ndarray(dtype: str, shape: list[int], data: str) -> Any:
    import numpy as np

    return np.frombuffer(bytes.fromhex(data), np.dtype(dtype)).reshape(shape).copy()


_MAKERS: dict[str, Callable[..., Any]] = {
    "complex": complex,
    "bytes": bytes.fromhex,
    "range": range,
    "Fraction": fractions.Fraction,
    "Decimal": decimal.Decimal,
    "datetime": datetime.datetime.fromisoformat,
    "date": datetime.date.fromisoformat,
    "time": datetime.time.fromisoformat,
    "timedelta": datetime.timedelta,
    "constant": {"NotImplemented": NotImplemented, "Ellipsis": Ellipsis}.__getitem__,
    "ndarray": _ndarray,
}
