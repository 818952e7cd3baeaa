"""A stand-in of the hub: a local server that answers what huggingface_hub's client asks for one repository."""

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Hub:
    """What it has, and what it was asked for."""

    name: str
    files: dict[str, bytes]
    token: str | None = None
    """Who asks without it is told that the repository is gated."""
    stall_after: int | None = None
    """Bytes of a large file after which nothing comes any more."""
    stalled: threading.Event = field(default_factory=threading.Event)
    address: str = ""
    asked: list[tuple[str, str, str | None]] = field(default_factory=list)
    """Method, path and range of each request."""

    @property
    def environment(self) -> dict[str, str]:
        """What tells huggingface_hub to ask here."""
        return {"HF_ENDPOINT": self.address, "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1"}


@contextmanager
def serve(model: Path, name: str = "someone/tiny", **settings: object) -> Iterator[Hub]:
    """The folder ``model`` as the repository ``name`` at COMMIT, which is its branch ``main``."""
    files = {path.relative_to(model).as_posix(): path.read_bytes() for path in model.rglob("*") if path.is_file()}
    hub = Hub(name, files | {"pytorch_model.bin": b"other", "original/consolidated.00.pth": b"other"}, **settings)  # type: ignore[arg-type]

    class Answers(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            _answer(hub, self)

        do_HEAD = do_GET

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    hub.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()


def _answer(hub: Hub, ask: BaseHTTPRequestHandler) -> None:
    hub.asked.append((ask.command, ask.path, ask.headers.get("Range")))
    path = ask.path.partition("?")[0]
    if hub.token and ask.headers.get("Authorization") != f"Bearer {hub.token}":
        return _send(ask, 403, b"{}", {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access is restricted"})
    if match := re.fullmatch(r"/api/(?:models|datasets)/([^/]+/[^/]+)(?:/(tree|revision)/([^/]+))?", path):
        name, what, revision = match.groups()
        if name != hub.name:
            return _send(ask, 404, b"{}", {"X-Error-Code": "RepoNotFound"})
        if revision not in (None, COMMIT, "main"):
            return _send(ask, 404, b"{}", {"X-Error-Code": "RevisionNotFound"})
        tree = [{"type": "file", "path": k, "size": len(v), "oid": _oid(v)} for k, v in hub.files.items()]
        found = tree if what == "tree" else {"id": name, "sha": COMMIT, "siblings": []}
        return _send(ask, 200, json.dumps(found).encode(), {"Content-Type": "application/json"})
    if (match := re.fullmatch(rf"(?:/datasets)?/{hub.name}/resolve/{COMMIT}/(.+)", path)) and match[1] in hub.files:
        return _file(hub, ask, hub.files[match[1]])
    return _send(ask, 404, b"{}", {"X-Error-Code": "EntryNotFound"})


def _file(hub: Hub, ask: BaseHTTPRequestHandler, content: bytes) -> None:
    start = int((re.match(r"bytes=(\d+)-", ask.headers.get("Range") or "bytes=0-") or [0, 0])[1])
    body, headers = content[start:], {"ETag": f'"{_oid(content)}"', "X-Repo-Commit": COMMIT}
    if start:
        headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
    stalls = hub.stall_after is not None and len(content) > hub.stall_after and ask.command == "GET"
    _send(ask, 206 if start else 200, body, headers, shown=hub.stall_after if stalls else None)
    if stalls:
        hub.stalled.set()
        ask.rfile.read(1)  # until the client is gone


def _oid(content: bytes) -> str:
    return hashlib.sha1(content, usedforsecurity=False).hexdigest()


def _send(
    ask: BaseHTTPRequestHandler, status: int, body: bytes, headers: dict[str, str], shown: int | None = None
) -> None:
    ask.send_response(status)
    for key, value in {**headers, "Content-Length": str(len(body))}.items():
        ask.send_header(key, value)
    ask.end_headers()
    if ask.command != "HEAD":
        ask.wfile.write(body[:shown])
