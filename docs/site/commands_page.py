"""The page of the command line: examples from docs/cli.md, help and options from the commands themselves."""

import re
from typing import Any

from deployments.cli import COMMANDS, load

HEAD = "| argument or option | default | meaning |\n|---|---|---|\n"
_SECTION = re.compile(r"^## `oapl (\S+)`\n", flags=re.MULTILINE)


def commands_page(written: str) -> str:
    """Put help and options of each command before its examples in ``written``, in the order of `oapl --help`.

    Raises:
        ValueError: a section is about no command.
    """
    head, *parts = _SECTION.split(written)
    examples = dict(zip(parts[::2], parts[1::2], strict=True))
    # a command that was renamed must not leave its examples behind
    if unknown := examples.keys() - set(COMMANDS):
        raise ValueError(f"docs/cli.md: there is no command {sorted(unknown)}")
    return head + "".join(_section(name, examples.get(name, "")) for name in COMMANDS)


def _section(name: str, examples: str) -> str:
    """Heading, help, options, then what the hand-written page shows of the command."""
    command = load(name)
    parts = (f"## `oapl {name}`", _cell(command.help, "\n"), _table(command), examples.strip("\n"))
    return "\n\n".join(part for part in parts if part) + "\n\n"


def _table(command: Any) -> str:
    """The command's arguments and options, a row each; without any, nothing."""
    rows = [_row(parameter) for parameter in command.params if "--help" not in parameter.opts]
    return HEAD + "\n".join(rows) if rows else ""


def _row(parameter: Any) -> str:
    """How an argument or option is written, its default, its help."""
    if parameter.param_type_name == "argument":
        written = parameter.metavar
    else:
        word = "" if parameter.is_flag else parameter.metavar or ("PATH" if "pathlib" in str(parameter) else "VALUE")
        written = " / ".join([*parameter.opts, *parameter.secondary_opts]) + f" {word}".rstrip()
    default = "required" if parameter.required else f"`{parameter.default}`" if parameter.default else ""
    return f"| `{written}` | {default} | {_cell(parameter.help)} |"


def _cell(text: str, line: str = " ") -> str:
    """The same where a bar would end a cell and `<` begin an element."""
    return line.join(text.strip().splitlines()).replace("|", "\\|").replace("<", "&lt;")
