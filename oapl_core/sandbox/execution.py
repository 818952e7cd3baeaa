"""The nouns of the sandbox: what is run, within which limits, and the facts that come back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:  # a fork server needs no description: its requests say what to run
    from oapl_core.toolchain import Toolchain


@dataclass(frozen=True)
class Limits:
    """Limits of one program for ONE test."""

    cpu_s: float = 6.0
    """CPU time of all its threads, counted by the kernel."""
    wall_s: float = 18.0
    """Elapsed time; catches a program that sleeps."""
    memory_mb: int = 1024
    """Address space in MiB (RLIMIT_AS): with fork and memfd denied, a true total. Libraries that the fork server has
    imported for it come on top, so that it does not matter which programs ran on it before."""
    output_mb: float = 16.0
    """Largest output, and largest file in the private directory, in MiB."""

    def __post_init__(self) -> None:
        """Raises ValueError for a limit under which no Python program can start."""
        if min(self.cpu_s, self.wall_s, self.output_mb) <= 0 or self.memory_mb < 64:
            raise ValueError(f"limits must be positive and memory_mb at least 64, got {self}")


@dataclass(frozen=True)
class Program:
    """Untrusted source, Python unless it comes with a `toolchain`.

    Without `entry_point` an input is its standard input. With one, an input is a JSON array of arguments for that
    function, or that method of a class `Solution`. The return value comes back as JSON. With `is_checked` as well, an
    input is Python code: assert-style checks. They run in a process of their own and call the entry point in the
    program's process (judge.py).
    """

    source: str
    entry_point: str | None = None
    is_checked: bool = False
    starter: str = ""
    """The problem's starter code: what it declares (imports, helpers, classes) serves the program and the checks, if it
    compiles. Checks only."""
    toolchain: Toolchain | None = None
    """Commands for a program that is no Python, in a sandbox for them; it reads standard input."""
    executable: bytes = b""
    """Executable that `Sandbox.compiled` made of the source."""

    @property
    def needs_compiler(self) -> bool:
        """Whether it can only be run once it is compiled."""
        return self.toolchain is not None and bool(self.toolchain.compile) and not self.executable


Checks = Literal["", "passed", "failed", "raised", "not_judgeable", "gone"]
"""End of assert-style checks.

    passed           all checks held
    failed           one did not hold, or could not use the value that the program returned
    raised           the program raised an exception that the checks did not expect
    not_judgeable    the checks compared a value that is not plain data
    gone             the program's process ended under the checks

Empty without checks.
"""


@dataclass(frozen=True)
class Execution:
    """Facts of one program on one input, never a judgement."""

    exit_code: int | None
    """Exit code by Python's rules: 0, 1 after an uncaught exception, or the program's own; None if it was killed."""
    signal: int | None
    """The signal that ended it, whoever sent it."""
    raised: str
    """Type of the exception that left the program, as the child reports it; empty if none did."""
    compile_error: bool
    """The source did not compile."""
    cpu_limit: bool
    wall_limit: bool
    output_limit: bool
    memory_limit: bool
    result: bytes | None
    """JSON of the return value (entry_point only); None when it returned nothing that is JSON."""
    stdout: bytes
    """At most `Limits.output_mb`."""
    stderr: bytes
    """The last 2 KiB of what its child wrote to standard error."""
    cpu_s: float
    wall_s: float
    peak_memory_mb: float
    """Largest resident set of its process: from the kernel for the last test of a child, else as the child reports."""
    fresh: bool
    """Whether it was the first test of its process: only then can nothing from an earlier test have touched it."""
    checks: Checks = ""
    """The word of the process that ran the checks; the program has no part in it."""
    detail: str = ""
    """Failed check with its line, in the words of the checks' process; or the compiler's first message."""

    @property
    def completed(self) -> bool:
        """Whether it ran to its own end: no exception, signal or limit. sys.exit(n) counts as its own end."""
        limited = self.cpu_limit or self.wall_limit or self.output_limit or self.memory_limit
        return not (limited or self.compile_error or self.raised) and self.exit_code is not None
