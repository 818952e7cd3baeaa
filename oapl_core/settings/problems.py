"""Which problems a run has and how a prompt is made of one: the settings of ``[problems]``, with units and sources."""

import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PositiveInt

from oapl_core.errors import ConfigError
from oapl_core.model_files import prompt_templates
from oapl_core.settings_group import Settings


class PromptTemplate(Settings):
    """A template as it was read, so that a run keeps it whatever happens to the file."""

    changes_nothing = frozenset({"file"})
    file: Path
    """Where it was read; what prompts depend on is its text."""
    text: str
    """Jinja over the fields of a problem."""


class PromptExample(Settings):
    """A problem with its solution, shown before the problem that is asked."""

    statement: str
    """Statement, in the form of a problem's."""
    solution: str
    """Solution in the form that an answer should have."""
    starter_code: str | None = None
    """Starter code, in the form of a problem's."""
    entry_point: str | None = None
    """Entry point, in the form of a problem's."""


def _listed(value: Any) -> Any:
    return (value,) if isinstance(value, str | Path) else value


def read_text(path: Path) -> str:
    """Read a file that a setting names. Raises ValueError if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ValueError(f"{path}: cannot be read ({reason})") from None


def _template(value: Any) -> Any:
    """Replace a path by the template in that file; the record of a run has the text already."""
    if not isinstance(value, str | Path):
        return value
    text = read_text(Path(value))
    try:
        prompt_templates.check(text, Path(value))
    except ConfigError as error:
        raise ValueError(str(error)) from None
    return {"file": value, "text": text}


def _examples(value: Any) -> Any:
    """Replace a path by the examples in that file; further columns of a row, such as a problem set's, are left out."""
    if not isinstance(value, str | Path):
        return value
    examples = []
    for number, line in enumerate(read_text(Path(value)).split("\n"), start=1):
        try:
            row = json.loads(line) if line.strip() else None
        except json.JSONDecodeError as error:
            raise ValueError(f"{value}:{number}: is not JSON ({error.msg})") from None
        if row is None:
            continue
        if not isinstance(row, dict) or not all(isinstance(row.get(key), str) for key in ("statement", "solution")):
            raise ValueError(f"{value}:{number}: must be an object with the texts `statement` and `solution`")
        examples.append({key: row[key] for key in PromptExample.model_fields if key in row})
    return examples


ProblemFiles = Annotated[tuple[Path, ...], BeforeValidator(_listed)]
"""One file or a list of them."""


class PromptConfig(Settings):
    """How a problem becomes a prompt, in a run and for `oapl evaluate`."""

    prompt_style: Literal["plain", "deepcoder", "livecodebench", "matharena"] = "deepcoder"
    """`plain` shows the statement alone; `deepcoder` is the DeepCoder replication's single user turn; `livecodebench`
    and `matharena` are those benchmarks' own words. `oapl prompt SET prompt_style=STYLE` prints one."""
    template: Annotated[PromptTemplate | None, BeforeValidator(_template)] = None
    """A file of your own in place of a style: Jinja over `statement`, `kind` and so on (docs/prompts.md).
    Its text is kept in run.json; prompts depend on that and not on the file's name."""
    system: str | None = None
    """The system turn, in place of the style's or template's own; before plain text it stands first."""
    examples: Annotated[tuple[PromptExample, ...], BeforeValidator(_examples)] = ()
    """Worked problems shown before each problem: a JSONL file of `statement` and `solution`, or a list of them. The
    style or template is applied to each; a chat model gets them as turns."""
    chat: bool | None = None
    """Whether prompts go through the model's chat template; unset: if it has one. Else they are plain text after the
    tokenizer's own beginning-of-text token."""
    thinking: bool | None = None
    """The chat template's switch `enable_thinking`; unset: what the template does by itself."""
    max_prompt_tokens: PositiveInt = 4096
    """Longest prompt; longer ones are dropped and counted, never cut. Tokens."""

    @property
    def prompting(self) -> dict[str, Any]:
        """Settings that prompts depend on beside problems and tokenizer; a template counts by its text, not its
        file.
        """
        dumped = self.model_dump(mode="json", include=set(PromptConfig.model_fields))
        return dumped if self.template is None else dumped | {"template": self.template.text}


class ProblemsConfig(PromptConfig):
    """Where the problems come from and how a prompt is made of one."""

    train: Annotated[ProblemFiles, Field(min_length=1)]
    """Problem sets that rounds sample from: a file (.jsonl, .json, both also .gz, .parquet or .arrow), or a list
    of files. A .json file holds one array of problems, or one problem in each line."""
    validation: ProblemFiles = ()
    """Files of the problems that choose the checkpoint; none: the last epoch is taken."""
    heldout: Annotated[ProblemFiles, Field(min_length=1)]
    """Files of problems that are only ever measured on; the column `source` of a problem tells several apart."""
    exclude: ProblemFiles = ()
    """Training problems to leave out: JSONL lists of `problem_id`, as `oapl problems --screen` writes them."""
    limit: PositiveInt | None = None
    """Take only so many problems of each file, the first ones, for a rehearsal; unset: all."""

    def files(self, split: str) -> tuple[Path, ...]:
        """Return the files of `train`, `validation` or `heldout`."""
        paths: tuple[Path, ...] = getattr(self, split)
        return paths

    @property
    def slice(self) -> dict[str, Any]:
        """Settings that problems and prompts depend on beside their inputs."""
        return super().slice | self.prompting
