"""docs/cli.md is the frozen interface of the command line: commands, options, defaults and help are the real app's.

After a change that is meant, ``python -m tests.deployments.test_cli_page`` writes the tables anew.
"""

import re
from typing import Any

import pytest

from deployments.cli import COMMANDS, load
from tests.whole_run import ROOT

PAGE = ROOT / "docs" / "cli.md"
HEAD = "| argument or option | default | meaning |\n|---|---|---|\n"


def table(name: str) -> str:
    """The command's arguments and options, a row each; without any, nothing."""
    rows = [row(parameter) for parameter in load(name).params if "--help" not in parameter.opts]
    return HEAD + "\n".join(rows) + "\n" if rows else ""


def row(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        written = parameter.metavar
    else:
        word = "" if parameter.is_flag else parameter.metavar or ("PATH" if "pathlib" in str(parameter) else "VALUE")
        written = " / ".join([*parameter.opts, *parameter.secondary_opts]) + f" {word}".rstrip()
    default = "required" if parameter.required else f"`{parameter.default}`" if parameter.default else ""
    return f"| `{written}` | {default} | {parameter.help.replace('|', chr(92) + '|')} |"


def sections() -> dict[str, str]:
    """The page's text of each command, by name, in the page's order."""
    parts = re.split(r"^## `oapl (\S+)`\n", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_the_page_has_every_command_in_the_order_of_the_app() -> None:
    assert list(sections()) == COMMANDS


@pytest.mark.parametrize("name", COMMANDS)
def test_the_page_says_of_a_command_what_the_app_says(name: str) -> None:
    section, command = sections()[name], load(name)
    assert section.strip().startswith(command.help.strip())
    assert "".join(re.findall(r"^\|.*\n", section, flags=re.MULTILINE)) == table(name), "an option has changed"
    assert f"\n    oapl {name}" in section, "an example is missing"


def rewrite() -> None:
    """Put the app's help and tables into the page; examples and what follows them stay."""
    text = PAGE.read_text(encoding="utf-8").partition("## `oapl ")[0]
    for name in COMMANDS:
        kept = re.search(r"^    oapl .*", sections().get(name, ""), flags=re.MULTILINE | re.DOTALL)
        example = kept.group().strip("\n") if kept else f"    oapl {name}"
        parts = [f"## `oapl {name}`", load(name).help.strip(), table(name).strip(), example]
        text += "\n\n".join(part for part in parts if part) + "\n\n"
    PAGE.write_text(text.rstrip() + "\n", encoding="utf-8")


if __name__ == "__main__":
    rewrite()
