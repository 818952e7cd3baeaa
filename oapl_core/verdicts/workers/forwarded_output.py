"""Passes on what a person's own function prints, to the stage's log, without what a terminal would obey.

A function may print the response that it judges, and a response may hold anything. Some sequences clear a screen, hide
a line, or turn the direction of writing.
"""

import codecs
import os
import threading
import unicodedata
from contextlib import suppress
from typing import IO

_CHUNK_BYTES = 2**16
_KEPT = "\n\t"
_DRAINED_S = 2.0
"""For what is still in the pipe when its writer has ended."""
_OBEYED = ("Cc", "Cf", "Zl", "Zp")
"""Unicode's categories of control and format characters, line and paragraph separators."""


class _Escapes(dict[int, str]):
    """For `str.translate`: each character as it is to be written, looked at when it first comes."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        is_obeyed = unicodedata.category(character) in _OBEYED and character not in _KEPT
        self[code] = character.encode("unicode_escape").decode() if is_obeyed else character
        return self[code]


class ForwardedOutput:
    """A thread that reads a pipe until it ends, and writes it, escaped, to standard error."""

    def __init__(self, pipe: IO[bytes]) -> None:
        """Start to forward at once."""
        self._pipe = pipe
        self._thread = threading.Thread(target=self._forward, name="forwarded output", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Wait for what was printed before the writer ended."""
        self._thread.join(_DRAINED_S)
        if not self._thread.is_alive():
            self._pipe.close()

    def _forward(self) -> None:
        escapes = _Escapes()
        decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        while chunk := os.read(self._pipe.fileno(), _CHUNK_BYTES):
            data = memoryview(decoder.decode(chunk).translate(escapes).encode("utf-8", "backslashreplace"))
            # a log that is full or closed must not stop the function, which would wait for its pipe
            with suppress(OSError):
                while data:
                    data = data[os.write(2, data) :]
