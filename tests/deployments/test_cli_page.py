"""The page of the command line: every command and option with its help, and examples that the program understands."""

import re
import shlex

import pytest
from rich.text import Text

from deployments.cli import COMMANDS, load
from docs.site.commands_page import commands_page
from oapl_core.planning.stages import BASE_MODEL, EVALUATION, OF_A_ROUND, OPTIONAL, PREPARATION, REPORT
from oapl_core.settings.rows import sources
from tests.whole_run import ROOT

WRITTEN = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
PAGE = commands_page(WRITTEN)


def sections() -> dict[str, str]:
    """The page's text of each command, by name, in the page's order."""
    parts = re.split(r"^## `oapl (\S+)`\n", PAGE, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def examples(name: str) -> list[list[str]]:
    """Words of each line that calls the command, comments left out."""
    text = sections()[name].replace("\\\n", " ")
    lines = re.findall(rf"^    (?:\w+=\S+ )?oapl {name}( .*)?$", text, flags=re.MULTILINE)
    return [shlex.split(line, comments=True) for line in lines]


def test_the_page_has_every_command_in_the_order_of_the_app() -> None:
    assert list(sections()) == COMMANDS


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_has_its_help_and_a_row_for_each_option(name: str) -> None:
    section, command = sections()[name], load(name)
    assert section.strip().startswith(command.help.strip().splitlines()[0])
    rows = re.findall(r"^\| `([^`]+)` \| ([^|]*) \| (.+) \|$", section, flags=re.MULTILINE)
    parameters = [one for one in command.params if "--help" not in one.opts]
    assert len(rows) == len(parameters)
    for (written, default, meaning), parameter in zip(rows, parameters, strict=True):
        assert parameter.metavar in written if parameter.param_type_name == "argument" else parameter.opts[0] in written
        assert (default == "required") == parameter.required
        assert meaning.strip() and len(meaning.split()) > 1, f"{written}: say in words what it is"


@pytest.mark.parametrize("name", COMMANDS)
def test_no_word_of_a_help_is_taken_for_a_style(name: str) -> None:
    command = load(name)
    texts = [command.help, *(getattr(one, "help", "") for one in command.params)]
    assert not [text for text in texts if text and Text.from_markup(text).plain != text], "a terminal leaves it out"


def test_the_help_of_run_names_every_stage() -> None:
    named = re.findall(r"[\w-]+", load("run").help.partition("STAGE is ")[2])
    planned = (BASE_MODEL, PREPARATION, *OF_A_ROUND, *OPTIONAL, EVALUATION, REPORT)
    assert set(named) == {stage.word for stage in planned} | {kind.word for kind in sources() if kind.word}
    page = (ROOT / "data" / "README.md").read_text(encoding="utf-8").partition("Stages are ")[2].partition("\n\n")[0]
    assert set(named) == set(re.findall(r"`([\w-]+)`", page))


@pytest.mark.parametrize("name", COMMANDS)
def test_examples_use_options_that_exist(name: str) -> None:
    known = {opt for one in load(name).params for opt in (*one.opts, *one.secondary_opts)}
    assert examples(name), "an example is missing"
    used = {word for words in examples(name) for word in words if re.fullmatch(r"--?[a-z][\w-]*", word)}
    assert used <= known


def test_a_checkout_has_the_examples_and_no_table_to_keep() -> None:
    assert "`oapl COMMAND --help`" in WRITTEN
    assert "| argument or option |" not in WRITTEN and "| argument or option |" in PAGE


def test_examples_of_no_command_stop_the_build() -> None:
    with pytest.raises(ValueError, match="there is no command \\['gone'\\]"):
        commands_page("# Commands\n\n## `oapl gone`\n\n    oapl gone\n")
