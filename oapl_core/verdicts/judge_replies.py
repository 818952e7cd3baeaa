"""The number that a language model's reply says, read strictly: a reply may quote the response that it judges. Pure."""

import re

from oapl_core.settings.judge import JudgeConfig

CUT = "\n(the reply was cut at max_tokens)"
"""End of a reply that its limit cut: the digits of its number may have gone with the rest."""
_EMPHASIS = str.maketrans("", "", "*`")
_THINKING, _THOUGHT = "<think>", "</think>"


class Unusable(Exception):
    """A reply without a number that can be believed."""


def number_in(reply: str, config: JudgeConfig) -> float:
    """The number of the reply's last line, which is nothing but the judge's word.

    Raises:
        Unusable: that line is another, a further such line says another number, or the number is out of bounds.
    """
    said = reply.lstrip()
    if said.startswith(_THINKING):
        said = said.partition(_THOUGHT)[2]
    # by \n alone: what else Unicode breaks lines at may stand in a quotation
    lines = [line.translate(_EMPHASIS).strip() for line in said.split("\n")]
    found = [_number(line, config) for line in lines if line]
    if not found or found[-1] is None:
        raise Unusable(f"no number in its reply's last line {' '.join(reply.split())[-80:]!r}")
    # one of them may be the response's, put there to be repeated, and nobody can say which
    if len(numbers := {number for number in found if number is not None}) > 1:
        raise Unusable(f"its reply says {', '.join(f'{number:g}' for number in sorted(numbers))}, each on its own line")
    # comparisons with nan are false: a pattern of one's own may find it
    if not config.lowest <= found[-1] <= config.scale:
        raise Unusable(f"its reply says {found[-1]:g}, which is not from {config.lowest:g} to {config.scale:g}")
    return found[-1]


def _number(line: str, config: JudgeConfig) -> float | None:
    """What a line says, if the whole of it is the pattern; `/ 10` may follow where the scale is 10."""
    whole = re.fullmatch(config.pattern, re.sub(rf"\s*/\s*{re.escape(f'{config.scale:g}')}$", "", line))
    try:
        # \d and float() know the digits of every script, which no judge was asked to write
        return float(whole[1]) if whole and whole[1].isascii() else None
    except (AttributeError, TypeError, ValueError):  # a group that took no part, or no number
        return None
