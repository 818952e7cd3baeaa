"""One sandbox and one verifier for all tests of a session; OAPL_TEST_SANDBOX_LEVEL=fallback runs them at that level."""

import os
from typing import cast

from oapl_core.sandbox.sandbox import Level, Sandbox

LEVEL = cast("Level | None", os.environ.get("OAPL_TEST_SANDBOX_LEVEL"))
IS_FALLBACK = LEVEL == "fallback"


def sandbox(workers: int = 2) -> Sandbox:
    """A sandbox at the level under test."""
    return Sandbox(workers=workers, level=LEVEL)


def descendants(pid: int) -> set[int]:
    """Every live process below `pid`."""
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat") as file:  # noqa: PTH123
                    fields = file.read().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if fields[0] != "Z":
                parents[int(name)] = int(fields[1])
    found, waiting = set[int](), [pid]
    while waiting:
        parent = waiting.pop()
        below = [child for child, above in parents.items() if above == parent]
        found.update(below)
        waiting += below
    return found
