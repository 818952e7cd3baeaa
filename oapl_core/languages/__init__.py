"""The languages that programs are written in, beside Python: one small file each, in this folder (docs/languages.md).

Python is not among them: its programs run in the interpreter of the fork servers, and need no description. Reads the
files once; starts nothing.
"""

import shutil
import subprocess
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from oapl_core import plugins
from oapl_core.errors import DataError, SandboxError

PYTHON = "python"
_FOLDER = Path(__file__).parent
_SEEN = "/usr/bin"
"""Folders of a language's tools: programs see the folders of the system's packages, and no others."""
_PROBE_S = 20.0


@dataclass(frozen=True)
class Language:
    """Language of programs: how they are asked for, compiled and run. Lists are commands: a tool and its arguments."""

    name: str
    """Name in a problem's `language`; the file's name."""
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
        """Return the path of a tool of the language. Raises SandboxError with what to install."""
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


@cache
def languages() -> Mapping[str, Language]:
    """Return each language, by name, with a file here or in a package (entry point `oapl.language`: a Language)."""
    here = {path.stem: _read(path) for path in sorted(_FOLDER.glob("*.toml"))}
    return {name: plugins.resolve("language", name) for name in plugins.names("language")} | here


def language(name: str) -> Language:
    """Return the language of that name. Raises DataError with the names there are."""
    try:
        return languages()[name]
    except KeyError:
        known = ", ".join((PYTHON, *languages()))
        raise DataError(
            f"unknown language {name!r}; choose one of {known}, or describe it (docs/languages.md)"
        ) from None


def named(tag: object) -> str | None:
    """Return the language beside Python that other people's tag means: its name, or a tag of its code blocks."""
    return next((name for name, one in languages().items() if tag == name or tag in one.fences), None)


def of(problem: Mapping[str, Any]) -> Language | None:
    """Return the language that a row of tables.PROBLEMS asks for; None: Python. Raises DataError for no such one."""
    name = problem.get("language") or PYTHON
    return None if name == PYTHON else language(name)


def words_of(problem: Mapping[str, Any]) -> dict[str, str]:
    """Return the words that a prompt's template sees as `language`."""
    found = of(problem)
    return found.words if found else {"name": PYTHON, "title": "Python", "fence": "python", "comment": "#"}


def _read(path: Path) -> Language:
    values = tomllib.loads(path.read_text(encoding="utf-8"))
    known = {field.name for field in fields(Language)} - {"name"}
    if unknown := sorted(values.keys() - known):
        raise ValueError(f"{path}: unknown key `{unknown[0]}`; the keys are {', '.join(sorted(known))}")
    lists = {key: tuple(value) for key, value in values.items() if isinstance(value, list)}
    return Language(name=path.stem, **{**values, **lists})
