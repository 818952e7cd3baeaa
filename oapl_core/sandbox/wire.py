"""Messages between the supervisor and a fork server: a JSON header and byte strings, over a Unix stream socket.

Both sides are ours; nothing a program wrote is ever parsed here, it travels as opaque bytes.
"""

import json
import socket
import struct
from collections.abc import Sequence
from typing import Any

_LENGTH = struct.Struct("!I")

REQUEST = b"R"
"""Before a request."""
STOP = b"S"
"""From the supervisor: the rest of the running request is not needed."""


def send(connection: socket.socket, header: dict[str, Any], blobs: Sequence[bytes] = (), prefix: bytes = b"") -> None:
    """Sends one message; blocks until the other side has room."""
    text = json.dumps({**header, "sizes": [len(b) for b in blobs]}).encode()
    connection.sendall(b"".join([prefix, _LENGTH.pack(len(text)), text, *blobs]))


def receive(connection: socket.socket) -> tuple[dict[str, Any], list[bytes]]:
    """Reads one message. Raises EOFError when the other side is gone."""
    (length,) = _LENGTH.unpack(_exactly(connection, _LENGTH.size))
    header: dict[str, Any] = json.loads(_exactly(connection, length))
    return header, [_exactly(connection, size) for size in header.pop("sizes")]


def _exactly(connection: socket.socket, size: int) -> bytes:
    buffer = bytearray(size)
    view = memoryview(buffer)
    while view:
        count = connection.recv_into(view)
        if count == 0:
            raise EOFError("the other side closed the connection")
        view = view[count:]
    return bytes(buffer)
