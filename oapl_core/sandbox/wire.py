"""Messages between the supervisor and a fork server: JSON headers, and the open files of a request.

Neither side ever sends a program, an input or an output. Those lie in anonymous files which the supervisor makes and
reads (request.py). Only their descriptors pass through the server, to the child.
"""

import json
import socket
import struct
from collections.abc import Sequence
from typing import Any

_LENGTH = struct.Struct("!I")

REQUEST = b"R"
"""Byte before a request; its files travel with it."""
STOP = b"S"
"""From the supervisor: the rest of the running request is not needed."""
MOST_FILES = 128
"""Files of one request, at most; the kernel takes 253 (SCM_MAX_FD)."""


def send(connection: socket.socket, *messages: dict[str, Any]) -> None:
    """Sends messages in one piece; blocks until the other side has room."""
    connection.sendall(b"".join(map(_framed, messages)))


def receive(connection: socket.socket) -> dict[str, Any]:
    """Read one message from the socket. Raises EOFError when the other side is gone."""
    # The other side is trusted (a fork server runs nothing of a program), so no length is refused.
    (length,) = _LENGTH.unpack(_exactly(connection, _LENGTH.size))
    message: dict[str, Any] = json.loads(_exactly(connection, length))
    return message


def send_request(connection: socket.socket, message: dict[str, Any], files: Sequence[int]) -> None:
    """Sends a request and hands over copies of `files`; in one piece, so that the server wakes up once."""
    assert len(files) <= MOST_FILES
    data = REQUEST + _framed(message)
    connection.sendall(data[socket.send_fds(connection, [data], files) :])  # send_fds may send a part, with all files


def receive_request(connection: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Read next request and its files; None when the other side is gone. A STOP that came too late is passed over."""
    while True:
        kind, files, _, _ = socket.recv_fds(connection, 1, MOST_FILES)  # the byte alone: its files come with it
        if kind == REQUEST:
            return receive(connection), list(files)
        if not kind:
            return None


def _framed(message: dict[str, Any]) -> bytes:
    text = json.dumps(message).encode()
    return _LENGTH.pack(len(text)) + text


def _exactly(connection: socket.socket, size: int) -> bytes:
    buffer = bytearray(size)
    view = memoryview(buffer)
    while view:
        count = connection.recv_into(view)
        if count == 0:
            raise EOFError("the other side closed the connection")
        view = view[count:]
    return bytes(buffer)
