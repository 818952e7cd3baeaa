"""Texts that nobody meant: drawn from a seed, of the pieces that answers, tool calls and replies are made of."""

import json
import random
from typing import Any

PIECES = [
    *("\\boxed{", "\\frac{", "\\sqrt[", "\\text{", "}", "{", "$", "\\(", "\\]", "####", "Answer:", "**", "\\boxed"),
    *("```python\n", "```\n", "~~~", "`", "def f(a):\n", "    return a\n", "print(", "input()", "class Solution:\n"),
    *("<think>", "</think>", "<tool_call>", "</tool_call>", '{"name": "', '", "arguments": ', "<calc>", "</calc>"),
    *("<|im_end|>", "<|im_start|>", "<tool_response>", "Score: ", "Score: -1e999", "nan", "Infinity", "1e400", "0x"),
    *(
        "\ud83d",
        "\udc00",
        "\x00",
        "\x1b[2J",
        "\u202e",
        "\ufeff",
        "\r\n",
        "\t",
        " ",
        "\n",
        "\N{GRINNING FACE}",
        "\u0661",
    ),
    *("(" * 300, "[" * 2000, "{" * 200, "-" * 3000, "9" * 5000, "a^" * 400, "\\frac12" * 100, "not " * 500, "\\" * 99),
]
"""Alone, each is harmless or one of the known ways to make a parser raise."""
_LARGEST = 2**20


def text(rng: random.Random) -> str:
    """A few pieces, some letters of any kind; one of five hundred is up to a MiB long."""
    found = "".join(_piece(rng) for _ in range(rng.randrange(1, 12)))
    if rng.random() < 1 / 500:
        found = (found * (_LARGEST // max(1, len(found)) + 1))[: rng.randrange(1, _LARGEST)]
    return found


def _piece(rng: random.Random) -> str:
    if rng.random() < 0.6:
        return rng.choice(PIECES)
    return "".join(chr(rng.choice((rng.randrange(32, 127), rng.randrange(0x110000)))) for _ in range(rng.randrange(9)))


def value(rng: random.Random, depth: int = 0) -> Any:
    """Anything that JSON can say, and some that only Python's reader takes."""
    kind = rng.randrange(9 if depth < 4 else 6)
    plain = [None, True, rng.randrange(-(10**30), 10**30), rng.choice([0.5, float("nan"), float("inf"), -1e308])]
    if kind < 4:
        return plain[kind]
    if kind < 6:
        return text(rng)[:2000]
    if kind == 6:
        return [value(rng, depth + 1) for _ in range(rng.randrange(4))]
    if kind == 7:
        return {text(rng)[:50]: value(rng, depth + 1) for _ in range(rng.randrange(4))}
    deep: Any = 1
    for _ in range(rng.choice((5, 50, 400))):
        deep = [deep]
    return deep


def call(rng: random.Random, tools: dict[str, str]) -> str:
    """A turn that calls one of ``tools`` (name -> parameter) in some wrong way, or in a right one."""
    name, parameter = rng.choice(list(tools.items()))
    said: Any = {"name": name, "arguments": {parameter: value(rng)}}
    wrong = rng.randrange(8)
    if wrong == 0:
        said["name"] = value(rng)
    elif wrong == 1:
        said["arguments"] = value(rng)
    elif wrong == 2:
        said["arguments"][text(rng)[:50]] = value(rng)
    elif wrong == 3:
        said = value(rng)
    written = json.dumps(said)
    if wrong == 4:
        place = rng.randrange(len(written))
        written = written[:place] + text(rng) + written[place:]
    if wrong == 5:
        return f"{_piece(rng)}<{name}>{text(rng)}</{name}>" * rng.randrange(1, 60)
    return f"{_piece(rng)}<tool_call>{written}</tool_call>" * rng.choice((1, 1, 2, 40))
