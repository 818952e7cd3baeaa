"""Nothing that a model, a problem set or another machine wrote reaches a terminal as anything but text."""

import ast
import io
import logging
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import RenderableType
from rich.panel import Panel
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from deployments import cli, terminal
from oapl_core.progress import say
from oapl_core.stage import _complain
from oapl_extras.watch.live import LiveRun, LiveSample
from oapl_extras.watch.watch_command import shown
from tests.synthetic_run import write_synthetic_run

ROOT = Path(__file__).parents[2]
HOSTILE = "a\x1b]0;OWNED\x07b\x1b[2J\x9b31mc\x9d0;OWNED\x9cd\u202ee\x7f\ud800"
OURS = re.compile(r"\x1b\[[0-9;]*m|\x1b\[\?25[lh]|\x1b\[\d*[AK]|\r")
"""Rich's own colours, and how it takes a live line away."""


def row(text: str) -> Table:
    table = Table(text)
    table.add_row(text, Text(text))
    return table


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """What the terminal gets, which believes that it is one."""
    file = io.StringIO()
    for name in ("console", "errors"):
        made = type(terminal.console)(file=file, force_terminal=True, width=200, highlight=False)
        monkeypatch.setattr(terminal, name, made)
    return file


def assert_harmless(text: str) -> None:
    assert "a\\x1b]0;OWNED" in text, "it is shown, in other characters"
    assert not [c for c in OURS.sub("", text) if not c.isprintable() and c not in "\n\t"]


@pytest.mark.parametrize(
    "shown_",
    [
        Text(HOSTILE),
        Panel(Text("x"), title=Text(HOSTILE)),
        Panel(HOSTILE, subtitle=HOSTILE),
        Rule(HOSTILE),
        row(HOSTILE),
        HOSTILE,
    ],
    ids=["text", "title of a panel", "panel", "rule", "table", "string"],
)
def test_whatever_is_shown(screen: io.StringIO, shown_: RenderableType) -> None:
    terminal.console.print(shown_)
    assert_harmless(screen.getvalue())


def test_lines_and_errors(screen: io.StringIO) -> None:
    terminal.tell(HOSTILE)
    assert_harmless(screen.getvalue())
    cli._complain(f"{HOSTILE}\nerror: forged", 1)
    assert_harmless(screen.getvalue())
    assert len(screen.getvalue().splitlines()) == 2, "an error is one line"


def test_progress_of_a_stage(screen: io.StringIO) -> None:
    narrator = terminal.Narrator([])
    for text in (f"x | 1/2 | {HOSTILE}", HOSTILE):
        narrator.emit(logging.LogRecord("a", logging.INFO, "", 0, text, None, None))
    narrator.close()
    assert_harmless(screen.getvalue())


def test_what_stages_print(capsys: pytest.CaptureFixture[str]) -> None:
    """Into their logs, which people look at with `cat` and `tail`."""
    say(f"{HOSTILE}\nprogress | forged")
    _complain(f"{HOSTILE}\nerror: forged", 1)
    said = capsys.readouterr()
    for text in (said.out, said.err):
        assert_harmless(text)
        assert text.count("\n") == 1


def test_watch(screen: io.StringIO, tmp_path: Path) -> None:
    from dataclasses import replace

    look = LiveRun(write_synthetic_run(tmp_path)).look()
    sample = look.samples[0] if look.samples else LiveSample("", "", 0.0, "", "")
    hostile: dict[str, Any] = {"problem_id": HOSTILE, "text": HOSTILE, "outcome": HOSTILE}
    steps = [replace(step, title=HOSTILE, line=HOSTILE) for step in look.steps[:2]]
    look = replace(look, name=HOSTILE, holder=HOSTILE, steps=steps, samples=[replace(sample, **hostile)])
    terminal.console.print(shown(look))
    assert_harmless(screen.getvalue())


def test_commands_show_through_the_terminal_alone() -> None:
    for path in sorted((ROOT / "deployments" / "commands").glob("*.py")):
        calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        names = {node.func.id: node.lineno for node in calls if isinstance(node.func, ast.Name)}
        assert "print" not in names, f"{path}: tell() makes what it prints harmless, print() does not"
