"""LiveCodeBench's `private_test_cases`: JSON, or base64(zlib(pickle(a JSON text))), without ever unpickling.

A pickle is a program. This one may contain one text and nothing else, so it is not run. Its opcodes are read one by
one, and anything but a text with its bookkeeping is refused. The text is taken as it stands.
"""

import base64
import binascii
import io
import json
import pickletools
import zlib
from typing import IO, Any

MOST_BYTES = 2**30
"""Unpacked; the largest known has 189 MB. What is larger is a bomb."""
_PIECE = 2**20
# Opcodes that every protocol of pickle writes around a text: version, frame, memo, end. None calls anything.
_BOOKKEEPING = frozenset({"PROTO", "FRAME", "MEMOIZE", "PUT", "BINPUT", "LONG_BINPUT", "STOP"})
_TEXTS = frozenset({"SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "UNICODE"})


class Dropped(Exception):
    """A row that is left out; its text is the reason that is counted."""


class RefusedPickle(ValueError):
    """A pickle that is more than one text: nothing of it was executed."""


def private_tests(packed: str, most_bytes: int = MOST_BYTES) -> Any:
    """Unpack the list of tests.

    Raises:
        RefusedPickle: the pickle is something else than a text, or it unpacks to more than ``most_bytes``.
        Dropped: it cannot be unpacked at all.
    """
    if packed.lstrip()[:1] in ("[", "{"):
        return _loaded(packed)
    try:
        stream = io.BufferedReader(_Unpacked(base64.b64decode(packed), most_bytes), _PIECE)
        del packed  # hundreds of megabytes, while as many are about to be unpacked
        return _loaded(pickled_text(stream))
    except (binascii.Error, zlib.error) as error:
        raise Dropped("private tests cannot be unpacked") from error


class _Unpacked(io.RawIOBase):
    """Stream of zlib's packed bytes, unpacked while it is read: the whole would be in memory once more."""

    def __init__(self, packed: bytes, most_bytes: int) -> None:
        self._packed, self._unpacker = io.BytesIO(packed), zlib.decompressobj()
        self._left, self._free, self._most_bytes = b"", most_bytes, most_bytes

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        """Return the bytes unpacked so far; `pickletools` notes the place of each opcode, which nobody needs."""
        return self._most_bytes - self._free

    def readinto(self, buffer: Any) -> int:
        """Read like io.RawIOBase; returns 0 at the end, also where it was torn off."""
        data = b""
        while not data and not self._unpacker.eof and (piece := self._left or self._packed.read(_PIECE)):
            data = self._unpacker.decompress(piece, len(buffer))
            self._left = self._unpacker.unconsumed_tail
        self._free -= len(data)
        if self._free < 0:
            raise RefusedPickle("unpack to more than any problem has: it is a bomb")
        buffer[: len(data)] = data
        return len(data)


def pickled_text(pickled: IO[bytes]) -> str:
    """Return the text that is all of a pickle.

    Raises:
        RefusedPickle: there is anything else in it; names the first opcode.
    """
    text: str | None = None
    try:
        for opcode, value, _ in pickletools.genops(pickled):
            if opcode.name in _TEXTS and text is None and isinstance(value, str):
                text = value
            elif opcode.name not in _BOOKKEEPING:
                raise RefusedPickle(f"are a pickle with {opcode.name} in it, not a plain text")
    except RefusedPickle:
        raise
    except (ValueError, IndexError) as error:
        raise RefusedPickle(f"are a broken pickle ({error})") from None
    if text is None:
        raise RefusedPickle("are a pickle without a text in it")
    return text


def _loaded(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise Dropped("tests are not JSON") from error
