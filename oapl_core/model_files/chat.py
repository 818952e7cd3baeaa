"""Text that a chat template makes of a conversation. Reads and writes nothing."""

from collections.abc import Mapping, Sequence
from typing import Any


class Refused(Exception):
    """The template does not take these turns; says why."""


def render(tokenizer: Any, turns: Sequence[Mapping[str, Any]], options: Mapping[str, Any], head: bool = True) -> str:
    """Render ``turns`` as text.

    Args:
        tokenizer: with a chat template.
        turns: messages.
        options: further arguments of the template.
        head: whether the head of the model's next turn follows.

    Raises:
        Refused: the template raised, or asks for what such turns do not have.
    """
    from jinja2.exceptions import TemplateError

    reasons, tools = list[str](), (None, list[Any]())
    for given in tools:  # some templates walk through tools whether there are any or not
        try:
            more = {"tools": given, **options}
            return str(tokenizer.apply_chat_template(turns, add_generation_prompt=head, tokenize=False, **more))
        except (TemplateError, TypeError, KeyError) as error:
            reasons.append(str(error))
    raise Refused(reasons[0])
