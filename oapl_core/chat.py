"""What a chat template writes of a conversation. Reads and writes nothing."""

from collections.abc import Mapping, Sequence
from typing import Any


def rendered(tokenizer: Any, turns: Sequence[Mapping[str, Any]], options: Mapping[str, Any]) -> str | None:
    """The text of ``turns`` with the head of the model's next turn; None: the template refuses them.

    Args:
        tokenizer: with a chat template.
        turns: messages; tools, which stand in the first prompt, are not shown again.
        options: what the template is given beside them.
    """
    from jinja2.exceptions import TemplateError

    others: tuple[dict[str, Any], ...] = ({}, {"tools": []})
    for more in others:  # some templates walk through tools whether there are any or not
        try:
            text: str = tokenizer.apply_chat_template(
                turns, add_generation_prompt=True, tokenize=False, **options, **more
            )
        except (TemplateError, TypeError, KeyError):  # some ask for a field that such a turn does not have
            continue
        return text
    return None
