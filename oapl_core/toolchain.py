"""A toolchain: the commands of a program that no interpreter of ours runs. Starts nothing but a question for a version.

Found once for a problem (toolchain_of.py), then carried as one object. The sandbox runs its commands, extraction looks
for its tags, and prompts have its words.
"""

import shutil
import subprocess
from dataclasses import dataclass

from oapl_core.errors import SandboxError

_SEEN = "/usr/bin"
"""Folder of the tools: programs see the folders of the system's packages, and no others."""
_PROBE_S = 20.0


@dataclass(frozen=True)
class Toolchain:
    """Tools that make and run programs, and how these are asked for. Lists are commands: a tool and its arguments."""

    name: str
    """Name in a problem's `language`."""
    title: str
    """Name in prompts and messages, with the standard: C++17."""
    fences: tuple[str, ...]
    """Tags of code blocks that hold such a program, in small letters; prompts show the first."""
    comment: str
    """Text that a line of comment begins with."""
    file: str
    """File name of the source."""
    run: tuple[str, ...]
    """Runs a test, in a folder with the source or, of a compiled language, with the executable."""
    version: tuple[str, ...]
    """Prints the version of the tools."""
    package: str
    """Debian's package of the tools."""
    right: str
    """A program that prints the sum of the two numbers it reads: a canary."""
    wrong: str
    """One that compiles, runs, and prints something else."""
    compile: tuple[str, ...] = ()
    """Makes the executable of the source; without it the source is run as it is."""
    executable: str = ""
    """File name of the compiler's output."""
    compile_cpu_s: float = 30.0
    """CPU time for each process of the compiler, and a third of the wall time for all of them. Seconds."""
    compile_memory_mb: int = 2048
    """Address space of each process of the compiler. MiB."""
    out_of_memory: str = ""
    """Message of a program that found no memory left, on standard error."""

    @property
    def words(self) -> dict[str, str]:
        """Words that a prompt's template sees as `language`."""
        return {"name": self.name, "title": self.title, "fence": self.fences[0], "comment": self.comment}

    def tool(self, name: str) -> str:
        """Return the path of one of the tools. Raises SandboxError with what to install."""
        # a version manager's tools lie in somebody's home folder, which no program may see
        path = shutil.which(name, path=_SEEN)
        if path is None:
            raise SandboxError(
                f"programs in {self.title} need `{name}` in {_SEEN}, which has none; "
                f"install it (on Debian: apt-get install {self.package})"
            )
        return path

    def found_version(self) -> str:
        """Return the first line that the tools say of themselves. Raises SandboxError if one is missing or fails."""
        for command in (self.compile, self.run):
            if command and "/" not in command[0]:
                self.tool(command[0])
        asked = [self.tool(self.version[0]), *self.version[1:]]
        try:
            said = subprocess.run(
                asked, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_PROBE_S, check=True
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise SandboxError(
                f"programs in {self.title}: `{' '.join(self.version)}` fails ({error}); "
                f"install it again (on Debian: apt-get install --reinstall {self.package})"
            ) from None
        return next((line.strip() for line in said.stdout.splitlines() if line.strip()), "says no version")
