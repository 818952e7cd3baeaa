"""Texts that tables, files, logs, terminals and pages can hold, whoever wrote them; pure but for ``lenient_output``.

Models cut emoji escapes in half: `"\\ud83d"` in a JSON string is one half of a character, a lone surrogate, which no
encoding knows. Each becomes U+FFFD, the replacement character. Tables (tables.py), files of JSON and progress lines
pass here, and so does what a tool call, an environment or a judge says.
"""

import io
import json
import re
import sys
from collections.abc import Mapping
from typing import Any

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_HALF = re.compile("[\ud800-\udfff]")


def storable_text(text: str) -> str:
    """Return ``text`` with U+FFFD in place of each lone surrogate; the same object where there is none."""
    # most texts are ASCII, which Python knows without looking
    return text if text.isascii() or not _HALF.search(text) else _HALF.sub(REPLACEMENT, text)


def storable(value: Any) -> Any:
    """Return ``value`` with every text in it made storable, the keys of mappings too; what else it has is kept."""
    if isinstance(value, str):
        return storable_text(value)
    if isinstance(value, Mapping):
        return {storable(key): storable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [storable(item) for item in value]
    return value


def json_text(value: Any, **options: Any) -> str:
    """Return ``value`` as JSON whose text is readable and can be encoded; ``options`` of ``json.dumps``."""
    return storable_text(json.dumps(value, ensure_ascii=False, **options))


def json_object(text: str | None) -> dict[str, Any]:
    """Return the object that a text of JSON holds; an empty one for anything else."""
    try:
        found = json.loads(text or "null")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def lenient_output() -> None:
    """Show characters that standard output cannot encode as escapes from now on, as standard error always does."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def printable(text: str) -> str:
    r"""Return ``text`` with control characters and lone surrogates made visible as ``\x1b``; lines and tabs stay."""
    safe = text.encode("utf-8", "backslashreplace").decode()  # surrogates alone cannot be encoded
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in safe)


def one_line(text: str) -> str:
    """Make line ends visible too: a text of one line stays one line."""
    return printable(text).replace("\n", "\\n")
