"""A prompt's template: Jinja in a sandbox, over the fields of one problem. Says what is wrong with one, and fills it.

Blocks take their line with them (trim_blocks, lstrip_blocks), and `raise_exception` refuses a problem, as in the chat
templates of Hugging Face. A field that does not exist is an error and never an empty text.
"""

import traceback
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from oapl_core.errors import ConfigError
from oapl_core.storable import json_object
from oapl_core.toolchain_of import ASKED_BY, PYTHON_WORDS, toolchain_of

if TYPE_CHECKING:
    from jinja2 import Template
    from jinja2.sandbox import ImmutableSandboxedEnvironment

FIELDS = ("problem_id", "kind", "statement", "starter_code", "entry_point", "platform", "language", "problem")
"""Columns of tables.PROBLEMS that a template sees: nothing of how an answer is judged. `language` has `name`, `title`,
`fence` and `comment` (languages/). `problem` has these and the row's own columns, such as `problem.level`."""
JUDGE_FIELDS = ("problem_id", "problem", "response", "verdict")
"""Fields that a judge's template sees."""
_SYSTEM = "system"


def check(text: str, file: Path, fields: Sequence[str] = FIELDS) -> None:
    """Read a template without filling it.

    Raises:
        ConfigError: its syntax is wrong, or it names a field that there is not; one line with file and line number.
    """
    from jinja2 import meta, nodes
    from jinja2.exceptions import TemplateError, TemplateSyntaxError

    environment = _environment()
    try:
        tree = environment.parse(text)
        unknown = meta.find_undeclared_variables(tree) - {*fields, *environment.globals}
        environment.compile(tree)
    except TemplateSyntaxError as error:
        raise ConfigError(f"{file}:{error.lineno}: {_one_line(error)}") from None
    except TemplateError as error:  # a filter or test that does not exist
        raise ConfigError(f"{file}: {_one_line(error)}") from None
    if unknown:
        used = [name for name in tree.find_all(nodes.Name) if name.name in unknown]
        first = min(used, key=lambda name: name.lineno)
        raise ConfigError(f"{file}:{first.lineno}: unknown field `{first.name}`; the fields are {', '.join(fields)}")


def fill(text: str, file: Path, problem: Mapping[str, Any], fields: Sequence[str] = FIELDS) -> tuple[str, str | None]:
    """Fill the template for ``problem``; returns its words and its value of `system`. It sees ``fields``.

    Raises:
        ConfigError: the template refuses the problem, fails on it or gives no text.
    """
    from jinja2.exceptions import TemplateError

    template = _compiled(text, file, tuple(fields))
    try:
        values = {name: problem.get(name) for name in fields}
        if ASKED_BY in fields:
            toolchain = toolchain_of(problem)
            values[ASKED_BY] = toolchain.words if toolchain else PYTHON_WORDS
        if tuple(fields) == FIELDS:
            values["problem"] = _seen(problem)
        module: Any = template.make_module(values)
    # whatever a person's expression can do to the value of a field
    except (TemplateError, ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        _refuse(template, file, problem, error)
    words = str(module)
    if not words.strip():
        raise ConfigError(f"{file}: gives no text for {_named(problem)}")
    system = getattr(module, _SYSTEM, None)
    return words, None if system is None else str(system)


def _seen(problem: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a prompt's template sees of a problem: the fields, and the columns of the row that are not ours."""
    return json_object(problem.get("info")) | {name: problem.get(name) for name in FIELDS if name != "problem"}


def _refuse(template: "Template", file: Path, problem: Mapping[str, Any], error: Exception) -> NoReturn:
    frames = traceback.extract_tb(error.__traceback__)
    line = next((frame.lineno for frame in reversed(frames) if frame.filename == "<template>"), None)
    place = f":{template.get_corresponding_lineno(line)}" if line else ""
    raise ConfigError(f"{file}{place}: {_named(problem)}: {_one_line(error)}") from None


def _named(problem: Mapping[str, Any]) -> str:
    return f"problem {problem.get('problem_id')!r} of kind {problem.get('kind')}"


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


@lru_cache(maxsize=8)
def _compiled(text: str, file: Path, fields: tuple[str, ...]) -> "Template":
    check(text, file, fields)
    return _environment().from_string(text)


@lru_cache(maxsize=1)
def _environment() -> "ImmutableSandboxedEnvironment":
    from jinja2 import StrictUndefined
    from jinja2.exceptions import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def raise_exception(message: str) -> NoReturn:
        raise TemplateError(message)

    environment = ImmutableSandboxedEnvironment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.globals["raise_exception"] = raise_exception
    return environment
