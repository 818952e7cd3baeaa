"""A language model that judges answers, behind an OpenAI-compatible URL: the settings of ``[reward.judge]``."""

import re
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, PositiveFloat, PositiveInt, model_validator

from oapl_core.errors import ConfigError
from oapl_core.model_files.prompt_templates import JUDGE_FIELDS, check
from oapl_core.settings.operation.secrets import KeylessUrl, VariableName
from oapl_core.settings.problems import PromptTemplate, read_text
from oapl_core.settings_group import Settings


def _prompt(value: Any) -> Any:
    """Replace a path by the file's text; the record of a run has the text already."""
    if not isinstance(value, str | Path):
        return value
    text = read_text(Path(value))
    try:
        check(text, Path(value), JUDGE_FIELDS)
    except ConfigError as error:
        raise ValueError(str(error)) from None
    return {"file": value, "text": text}


def _pattern(value: str) -> str:
    try:
        groups = re.compile(value).groups
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"is not a regular expression: {error}") from None
    if groups != 1:
        raise ValueError("has one group, the number")
    return value


class JudgeConfig(Settings):
    """A language model that says what an answer is worth."""

    changes_nothing = frozenset(
        "url timeout_s retries backoff_s concurrency api_key cache canaries max_unusable_share".split()
    )
    url: Annotated[KeylessUrl, Field(pattern=r"^https?://")]
    """Up to and with `/v1`."""
    model: str
    """Name of the model at the server."""
    prompt: Annotated[PromptTemplate, BeforeValidator(_prompt)]
    """Jinja file that makes the message from `problem` (its columns), `response` and `verdict`; what it sets `system`
    to is the system's message."""
    canaries: Path
    """JSON lines {"problem": {...}, "response": "...", "at_least": x}, or "at_most": known answers that are judged
    before the first rollout is; at least one of each."""
    pattern: Annotated[str, BeforeValidator(_pattern)] = r"(?i)(?:final\s+)?score\s*[:=]\s*(-?\d+(?:\.\d+)?)\s*\.?"
    """Regular expression that a reply's whole last line must match, less `*` and backticks; its group is the number."""
    scale: PositiveFloat = 1.0
    """The highest number that a reply may give; the number is divided by it."""
    lowest: float = 0.0
    """The lowest number that a reply may give; one below it or above `scale` is no vote, and is never cut to fit."""
    max_unusable_share: Annotated[float, Field(ge=0.0, le=1.0)] = 0.02
    """Share of the answers, counted from 100 on, that may stay without a number: the judge gave none, also when asked
    again with another seed. A response can bring that about. Above the share the stage ends.
    """
    votes: PositiveInt = 1
    """Replies to each answer, asked with seeds 0, 1, ...; the mean of those with a number counts, if they are most."""
    temperature: Annotated[float, Field(ge=0.0)] = 0.0
    """Temperature of the judge's sampling; more than 0 where there are several votes."""
    max_tokens: PositiveInt = 1024
    """Longest reply. Tokens."""
    timeout_s: PositiveFloat = 120.0
    """For one reply. Seconds."""
    retries: Annotated[int, Field(ge=0)] = 4
    """Number of retries after status 408, 409, 429 or 5xx, a timeout, a broken connection, or a reply in another
    format.
    """
    backoff_s: PositiveFloat = 1.0
    """Pause before the first retry; doubled for each further one, up to a minute. Seconds."""
    concurrency: PositiveInt = 16
    """Requests at a time."""
    api_key: VariableName = "OPENAI_API_KEY"
    """The variable of the environment that has the key; where it is not set, none is sent."""
    cache: Path = Path("data/cache/judge.sqlite")
    """Where every reply is kept, by SHA-256 of what was asked; what is there is not asked again."""

    @model_validator(mode="after")
    def _has_a_range(self) -> Self:
        if not self.lowest < self.scale:
            raise ValueError(f"lowest={self.lowest:g} must be less than scale={self.scale:g}, the highest number")
        return self
