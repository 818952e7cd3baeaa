"""``/dev/stdin`` for programs that open it: there is no /proc for the real one to point into."""

from __future__ import annotations

import builtins
import io
import os
from collections.abc import Callable
from typing import Any

_NAMES = ("/dev/stdin", "/dev/fd/0", "/proc/self/fd/0")


def install() -> Callable[..., Any]:
    """From now on `open`, `io.open` (so pathlib, too) and `os.open` know the name; returns the new `open`."""
    real_open, real_os_open = io.open, os.open

    def alias_open(file: Any, *arguments: Any, **named: Any) -> Any:
        return real_open(os.dup(0) if _is_stdin(file) else file, *arguments, **named)

    def alias_os_open(path: Any, *arguments: Any, **named: Any) -> int:
        return os.dup(0) if _is_stdin(path) else real_os_open(path, *arguments, **named)

    alias_open.__name__ = alias_os_open.__name__ = "open"
    builtins.open = io.open = alias_open
    os.open = alias_os_open
    return alias_open


def _is_stdin(file: Any) -> bool:
    if isinstance(file, int):
        return False
    try:
        return os.fsdecode(file) in _NAMES
    except TypeError:
        return False
