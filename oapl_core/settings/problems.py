"""Which problems a run has and how a prompt is made of one: the settings of ``[problems]``, with units and sources."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PositiveInt

from oapl_core.settings_group import Settings


def _listed(value: Any) -> Any:
    return (value,) if isinstance(value, str | Path) else value


ProblemFiles = Annotated[tuple[Path, ...], BeforeValidator(_listed)]
"""One file or a list of them."""


class ProblemsConfig(Settings):
    """Where the problems come from and how a prompt is made of one."""

    train: Annotated[ProblemFiles, Field(min_length=1)]
    """Problem sets that rounds sample from: a file (.jsonl, .jsonl.gz or .parquet), or a list of files."""
    validation: ProblemFiles = ()
    """Those that choose the checkpoint; none: the last epoch is taken."""
    heldout: Annotated[ProblemFiles, Field(min_length=1)]
    """Those that are only ever measured on; the column `source` of a problem tells several apart."""
    limit: PositiveInt | None = None
    """Take only so many problems of each file, the first ones, for a rehearsal; unset: all."""
    prompt_style: Literal["plain", "deepcoder", "livecodebench", "matharena"] = "deepcoder"
    """`plain` shows the statement alone; `deepcoder` is the DeepCoder replication's single user turn; `livecodebench`
    and `matharena` are those benchmarks' own words. `oapl prompt SET --style STYLE` prints one."""
    thinking: bool | None = None
    """The chat template's switch `enable_thinking`; unset: what the template does by itself."""
    max_prompt_tokens: PositiveInt = 4096
    """Longer prompts are dropped and counted, never cut. Tokens."""

    def files(self, split: str) -> tuple[Path, ...]:
        """The files of `train`, `validation` or `heldout`."""
        found: tuple[Path, ...] = getattr(self, split)
        return found
