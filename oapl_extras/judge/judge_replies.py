"""Replies of a language model that judges: the number that one says, and the record of all that were paid for.

The number is read strictly, as a reply may quote the response that it judges. The record is one SQLite file for all
runs, by the SHA-256 of a request.
"""

import re
import sqlite3
import threading
import time
from pathlib import Path

from oapl_core.errors import StageFailed
from oapl_core.settings.judge import JudgeConfig

_TABLE = (
    "CREATE TABLE IF NOT EXISTS replies (key TEXT PRIMARY KEY, model TEXT, asked TEXT, reply TEXT, "
    "prompt_tokens INTEGER, completion_tokens INTEGER, at TEXT)"
)
_WAIT_S = 60.0
"""Seconds to wait for another process that writes."""

CUT = "\n(the reply was cut at max_tokens)"
"""End of a reply that its limit cut: the digits of its number may have gone with the rest."""
_EMPHASIS = str.maketrans("", "", "*`")
_THINKING, _THOUGHT = "<think>", "</think>"


class Unusable(Exception):
    """A reply without a number that can be believed."""


def number_in(reply: str, config: JudgeConfig) -> float:
    """Read the number of the reply's last line, which is nothing but the judge's word.

    Raises:
        Unusable: the last line has no number, a further such line has another, or the number is out of bounds.
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
    """Read a line's number, if the whole line is the pattern; `/ 10` may follow where the scale is 10."""
    whole = re.fullmatch(config.pattern, re.sub(rf"\s*/\s*{re.escape(f'{config.scale:g}')}$", "", line))
    try:
        # \d and float() know the digits of every script, which no judge was asked to write
        return float(whole[1]) if whole and whole[1].isascii() else None
    except (AttributeError, TypeError, ValueError):  # a group that took no part, or no number
        return None


class ReplyCache:
    """Replies that were paid for. Thread-safe; several processes may share the file."""

    def __init__(self, path: Path) -> None:
        """Open or make the file.

        Raises:
            StageFailed: the file is no such file, or cannot be written.
        """
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._connection = sqlite3.connect(path, timeout=_WAIT_S, check_same_thread=False, isolation_level=None)
            # readers and a writer at a time, and a commit that survives a kill
            self._connection.execute("PRAGMA journal_mode=WAL")
            self._connection.execute(_TABLE)
        except (sqlite3.Error, OSError) as error:
            raise StageFailed(f"reward.judge.cache: {path} cannot be opened ({error}); give another file") from None
        self._lock = threading.Lock()

    def close(self) -> None:
        """Close the file of replies."""
        self._connection.close()

    def get(self, key: str) -> str | None:
        """Return the reply to what ``key`` stands for, if there is one."""
        with self._lock:
            found = self._connection.execute("SELECT reply FROM replies WHERE key = ?", (key,)).fetchone()
        return None if found is None else str(found[0])

    def put(self, key: str, model: str, asked: str, reply: str, tokens: tuple[int, int]) -> None:
        """Keep a reply; committed when this returns."""
        row = key, model, asked, reply, *tokens, time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        # replaced: a canary is asked again, and its last reply is as good
        with self._lock:
            self._connection.execute("INSERT OR REPLACE INTO replies VALUES (?, ?, ?, ?, ?, ?, ?)", row)
