"""Stop texts: where an answer that ended with one ends, in its text and in its tokens. Pure but for the tokenizer.

An engine ends an answer with the token that completes a stop text, and keeps that token: what was sampled stays whole.
"""

from collections.abc import Sequence
from typing import Any


def tokens_and_texts(tokenizer: Any, stop: Sequence[str]) -> tuple[list[int], list[str]]:
    """Return the ``stop`` texts that are special tokens, as ids, and the others.

    A special token is left out of decoded text, so an engine that looks for its text there would never find it.
    """
    special = {token.content: number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    return [special[text] for text in stop if text in special], [text for text in stop if text not in special]


def before_stop(tokenizer: Any, ids: Sequence[int], stop: str | None) -> tuple[str, int]:
    """Return the text of a response before ``stop`` (None: it ended otherwise), and the number of the stop text's
    tokens. They are the response's last ones, but for one that the answer itself reaches into."""
    text: str = tokenizer.decode(ids, skip_special_tokens=True)
    if stop is None:
        return text, 0
    # not found: decoding left out the space that it begins with, at the very beginning of the response
    text = text.partition(stop)[0] if stop in text else ""
    kept = len(ids)
    while kept and tokenizer.decode(ids[: kept - 1], skip_special_tokens=True).startswith(text):
        kept -= 1
    return text, len(ids) - kept
