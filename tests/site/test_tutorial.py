"""docs/tutorial.md: its commands are run in order as they stand there, and print the lines that follow them.

`...` in such a line stands for anything."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from docs.site.commands_page import commands_page

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^(?:`([\w.]+)`, new:\n\n)?```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
"""The name of a new file, the language, and what the block holds."""


def blocks() -> list[tuple[str, str, str]]:
    return BLOCK.findall((ROOT / "docs/tutorial.md").read_text("utf-8"))


def commands(console: str) -> list[tuple[list[str], list[str]]]:
    """Each command with the texts that it prints."""
    split = [command.rstrip("\n").split("\n") for command in console.removeprefix("$ ").split("\n$ ")]
    return [(shlex.split(line), expected) for line, *expected in split]


def test_its_commands_and_options_exist() -> None:
    page = commands_page((ROOT / "docs/cli.md").read_text("utf-8"))
    ran = [line for _, language, text in blocks() if language == "console" for line, _ in commands(text)]
    oapl = [line[1:] for line in ran if line[0] == ".venv/bin/oapl"]
    assert len(oapl) >= 7
    for command, *arguments in oapl:
        section = page.split(f"\n## `oapl {command}`\n")[1].split("\n## ")[0]
        assert not [option for option in arguments if option.startswith("--") and f"| `{option}" not in section]


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_it_is_true(tmp_path: Path) -> None:
    for name in ("deployments", "data/demo"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / ".venv").symlink_to(sys.prefix)
    for name, language, text in blocks():
        if name:
            (tmp_path / name).write_text(text)
        for line, expected in commands(text) if language == "console" else []:
            done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True)
            assert done.returncode == 0, f"{line}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
            said = " ".join(done.stdout.split())
            parts = [" ".join(part.split()) for text in expected for part in text.split("...")]
            assert not [part for part in parts if part not in said], f"{line}: {done.stdout}"
    assert (tmp_path / "data/runs/demo-seed0/report/index.html").is_file()
