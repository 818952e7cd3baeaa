"""A page that is run: its new files are written, its commands are run in order, and print the lines that follow them.

`...` in such a line stands for anything. A command that prints a line with `error: ` fails, on standard error."""

import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from docs.site.commands_page import commands_page

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^(?:`([\w./-]+)`, new:\n\n)?```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
"""The name of a new file, the language, and what the block holds."""


def blocks(page: Path) -> list[tuple[str, str, str]]:
    return BLOCK.findall(page.read_text("utf-8"))


def commands(console: str) -> list[tuple[list[str], list[str]]]:
    """Each command with the texts that it prints."""
    split = [command.rstrip("\n").split("\n") for command in console.removeprefix("$ ").split("\n$ ")]
    return [(shlex.split(line), expected) for line, *expected in split]


def check_options(page: Path) -> int:
    """Look for each option of `oapl` on the page of the command line; returns how many commands there are."""
    known = commands_page((ROOT / "docs/cli.md").read_text("utf-8"))
    ran = [line for _, language, text in blocks(page) if language == "console" for line, _ in commands(text)]
    oapl = [line[1:] for line in ran if Path(line[0]).name == "oapl"]
    for command, *arguments in oapl:
        section = known.split(f"\n## `oapl {command}`\n")[1].split("\n## ")[0]
        missing = [option for option in arguments if option.startswith("--") and f"| `{option}" not in section]
        assert not missing, f"{page.name}: oapl {command} has no {missing}"
    return len(oapl)


def run(page: Path, folder: Path, instead: Mapping[str, str] | None = None) -> list[str]:
    """Do what the page says in ``folder``, where `.venv` is this interpreter's; returns what each command said.

    ``instead``: words of files and commands, and what this machine has in their place.
    """
    (folder / ".venv").symlink_to(sys.prefix)
    environment = {**os.environ, "PATH": f"{sys.prefix}/bin:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    heard = []
    for name, language, text in blocks(page):
        for word, other in (instead or {}).items():
            text = text.replace(word, other)
        if name:
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(text)
        for line, expected in commands(text) if language == "console" else []:
            began = time.monotonic()
            done = subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True)
            fails = any(text.startswith("error: ") for text in expected)
            assert bool(done.returncode) == fails, f"{line}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
            said = " ".join(f"{done.stdout} {done.stderr if fails else ''}".split())
            parts = [" ".join(part.split()) for text in expected for part in text.split("...")]
            assert not [part for part in parts if part not in said], f"{line}: {said}"
            heard.append(said)
            print(f"{time.monotonic() - began:.0f} s: {shlex.join(line)}")  # for the page's minutes: pytest -s
    return heard
