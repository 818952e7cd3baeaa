"""How many sessions fit on this machine at once. A stopped session keeps its memory, and its supervisor's descriptors.

Reads the kernel's counters; raises this process's soft limit of descriptors to the hard one.
"""

import os
import resource
from pathlib import Path

from oapl_core.sandbox.execution import Limits

DESCRIPTORS_PER_SESSION = 3
"""Output, input, control (session.py)."""
_OTHER_DESCRIPTORS = 256
"""For all else that this process opens later: parts, logs, an engine's sockets."""
_SCRATCH_MIB = 16
"""A session's own files, which lie in memory (jail.py)."""
_MEMORY = Path("/proc/meminfo")
_GROUP = Path("/sys/fs/cgroup")


def sessions_in_memory(limits: Limits, processes: int = 1) -> int:
    """Count sessions that may use all that ``limits`` gives them, where so many ``processes`` start as many each."""
    each = (limits.memory_mb + _SCRATCH_MIB + 2 * limits.output_mb) * 2**20
    return int(free_bytes() / each / processes)


def free_bytes() -> int:
    """Return the memory that can be used without swapping: the machine's, or what is left of this container's."""
    lines = (line.split() for line in _MEMORY.read_text().splitlines())
    free = next(int(words[1]) * 1024 for words in lines if words[0] == "MemAvailable:")
    try:
        allowed = int((_GROUP / "memory.max").read_text()) - int((_GROUP / "memory.current").read_text())
    except (OSError, ValueError):  # no group of its own, or `max`
        return free
    return max(0, min(free, allowed))


def sessions_in_descriptors() -> int:
    """Count the sessions for which the limit of open files leaves room; the soft limit is raised to the hard one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard == resource.RLIM_INFINITY:
        hard = 2**31
    return max(0, hard - len(os.listdir("/proc/self/fd")) - _OTHER_DESCRIPTORS) // DESCRIPTORS_PER_SESSION
