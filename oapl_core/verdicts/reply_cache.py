"""Every reply of a language model that judges, by the SHA-256 of what was asked: one SQLite file for all runs."""

import sqlite3
import threading
import time
from pathlib import Path

from oapl_core.errors import StageFailed

_TABLE = (
    "CREATE TABLE IF NOT EXISTS replies (key TEXT PRIMARY KEY, model TEXT, asked TEXT, reply TEXT, "
    "prompt_tokens INTEGER, completion_tokens INTEGER, at TEXT)"
)
_WAIT_S = 60.0
"""For another process that writes."""


class ReplyCache:
    """Replies that were paid for. Thread-safe; several processes may share the file."""

    def __init__(self, path: Path) -> None:
        """Opens or makes the file.

        Raises:
            StageFailed: it is no such file, or cannot be written.
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
        """Close the file."""
        self._connection.close()

    def get(self, key: str) -> str | None:
        """The reply to what ``key`` stands for, if there is one."""
        with self._lock:
            found = self._connection.execute("SELECT reply FROM replies WHERE key = ?", (key,)).fetchone()
        return None if found is None else str(found[0])

    def put(self, key: str, model: str, asked: str, reply: str, tokens: tuple[int, int]) -> None:
        """Keep a reply; committed when this returns."""
        row = key, model, asked, reply, *tokens, time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        # replaced: a canary is asked again, and its last reply is as good
        with self._lock:
            self._connection.execute("INSERT OR REPLACE INTO replies VALUES (?, ?, ?, ?, ?, ?, ?)", row)
