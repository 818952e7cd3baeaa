"""A problem as chat messages: one definition for sampling, training, evaluation and exchange.

The words are a Jinja template's (oapl_core/model_files/prompt_templates.py): a person's own, or that of a style. A
style's template lies beside this file and names the source of its words. tests/core/problems/golden has each style,
letter by letter.
Whether a model thinks before it answers is for its chat template to say (`problems.thinking`).
"""

import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, get_args

from oapl_core.model_files.prompt_templates import fill
from oapl_core.settings.problems import PromptConfig

Style = Literal["plain", "deepcoder", "livecodebench", "matharena"]
STYLES: tuple[str, ...] = get_args(Style)
_SYSTEM_ROLES = ("system", "developer")


def messages(problem: Mapping[str, Any], style: Style) -> list[dict[str, str]]:
    """Write the conversation that asks ``problem`` in a style; reads kind, statement, starter_code, entry_point,
    platform, messages.

    Raises:
        ConfigError: the style has no words for problems of this kind.
    """
    return conversation(problem, PromptConfig(prompt_style=style))


def conversation(problem: Mapping[str, Any], config: PromptConfig) -> list[dict[str, str]]:
    """Write the conversation that asks ``problem``: a system turn if there is one, the examples, and the problem.

    Raises:
        ConfigError: the template refuses the problem, fails on it or gives no text; one line with file and problem.
    """
    # One place decides, so that what is trained, evaluated or exported cannot differ from what was sampled.
    template, given = config.template, json.loads(problem.get("messages") or "[]")
    if given and template is None:  # somebody's own words: no style adds to them
        own = [turn for turn in given if turn["role"] not in _SYSTEM_ROLES]
        first = _turn("system", config.system) if config.system else given[0] if len(own) < len(given) else None
        shown = [turn for one in config.examples for turn in _shown(one.statement, one.solution)]
        return [*([first] if first else []), *shown, *own]
    text, file = (template.text, template.file) if template else _style(config.prompt_style)
    words, system = fill(text, file, problem)
    system = system if config.system is None else config.system
    turns = [_turn("system", system)] if system else []
    for example in config.examples:
        # an example is of the problem's own kind: the template chooses its words by that
        asked, _ = fill(text, file, {**problem, **example.model_dump()})
        turns += _shown(asked, example.solution)
    # a template writes the last turn alone: what was said before it stays said
    earlier = [turn for turn in given[:-1] if turn["role"] not in _SYSTEM_ROLES]
    return [*turns, *earlier, _turn("user", words)]


def _shown(asked: str, solution: str) -> list[dict[str, str]]:
    return [_turn("user", asked), _turn("assistant", solution)]


def _turn(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


@lru_cache
def _style(name: str) -> tuple[str, Path]:
    file = Path(__file__).with_name(f"{name}.jinja")
    return file.read_text(encoding="utf-8"), Path(file.name)
