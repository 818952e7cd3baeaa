"""Empty arrays of a program in the checks' process: none is compared with an array that holds something.

NumPy broadcasts a shape (0, 1) against any vector, to an array of nothing, of which everything holds: `.all()` and
`allclose` are true. A check that makes an array of its own of the value first is not helped; `oapl problems --check`
finds those that pay. Pure.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np


def guarded(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the array; for an empty one a view whose comparisons fail instead of passing vacuously."""
    return array if array.size else array.view(_kind())


@functools.cache
def _kind() -> type[np.ndarray[Any, Any]]:
    import numpy as np

    def is_full(value: Any, scalars: bool) -> bool:
        # nothing is asked of what is no array: it may be the program's
        if isinstance(value, np.ndarray | list | tuple):
            return np.size(value) > 0 and (scalars or np.ndim(value) > 0)
        return scalars and isinstance(value, int | float | complex | np.number)

    def refuse(values: Any, scalars: bool) -> None:
        is_empty = any(isinstance(value, Empty) and not value.size for value in values)
        if is_empty and any(is_full(value, scalars) for value in values):
            raise AssertionError("an empty array was compared with what is not empty")

    class Empty(np.ndarray[Any, Any]):
        """An array without elements."""

        def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **named: Any) -> Any:
            """Apply the operation to plain arrays."""
            refuse(inputs, scalars=False)
            plain = [np.asarray(value) if isinstance(value, Empty) else value for value in inputs]
            return getattr(ufunc, method)(*plain, **named)

        def __array_function__(self, function: Any, types: Any, given: Any, named: Any) -> Any:
            """Call NumPy's function, unless it would find nothing to compare."""
            if function in (np.allclose, np.isclose, np.array_equiv):
                refuse((*given, *(named[name] for name in ("a", "b") if name in named))[:2], scalars=True)
            return super().__array_function__(function, types, given, named)

    return Empty
