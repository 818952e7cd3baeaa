"""A stand-in of the hub to push to and fetch from: it speaks what huggingface_hub's own client does."""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "hf_" + "w" * 34


@dataclass
class HubStore:
    """Its repositories, and what became of requests."""

    repositories: dict[str, dict[str, bytes]] = field(default_factory=dict)
    """``models/org/name`` or ``datasets/org/name`` -> content by path."""
    large: dict[str, bytes] = field(default_factory=dict)
    """Large files by sha256, committed or not."""
    stall_at: int | None = None
    """The upload of the so many-th large file (from 0) never ends."""
    stalled: threading.Event = field(default_factory=threading.Event)
    uploads: list[str] = field(default_factory=list)
    """sha256 of every large file that came whole."""
    address: str = ""

    @property
    def environment(self) -> dict[str, str]:
        """What tells huggingface_hub to ask here."""
        return {
            "HF_ENDPOINT": self.address,
            "HF_TOKEN": TOKEN,
            "HF_HUB_OFFLINE": "0",
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
        }

    def commit(self, repository: str) -> str:
        """Of its newest state."""
        content = sorted((name, hashlib.sha1(data).hexdigest()) for name, data in self.repositories[repository].items())
        return hashlib.sha1(json.dumps(content).encode()).hexdigest()


@contextmanager
def hub_store() -> Iterator[HubStore]:
    """An empty hub on a port of its own."""
    store = HubStore()

    class Answers(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            _read(store, self)

        do_HEAD = do_GET

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                return _send(self, 401, {"error": "no token"})
            return _post(store, self, body)

        def do_PUT(self) -> None:
            if store.stall_at == len(store.uploads):
                store.stalled.set()
                threading.Event().wait()  # until the process ends: this thread is a daemon
            body = self.rfile.read(int(self.headers["Content-Length"]))
            name = hashlib.sha256(body).hexdigest()
            store.large[name] = body
            store.uploads.append(name)
            _send(self, 200, {})

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    server.daemon_threads = True
    store.address = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield store
    finally:
        server.shutdown()
        server.socket.close()


def _post(store: HubStore, ask: BaseHTTPRequestHandler, body: bytes) -> None:
    path = ask.path.partition("?")[0]
    if path == "/api/repos/create":
        given = json.loads(body)
        name = "/".join([f"{given.get('type', 'model')}s", *filter(None, (given.get("organization"), given["name"]))])
        is_new = store.repositories.setdefault(name, {}) == {}
        return _send(ask, 200 if is_new else 409, {"url": f"{store.address}/{name}"})
    if path == "/api/validate-yaml":
        return _send(ask, 200, {"warnings": [], "errors": []})
    if match := re.fullmatch(r"/api/((?:models|datasets)/[^/]+/[^/]+)/preupload/[^/]+", path):
        there = store.repositories[match[1]]
        return _send(ask, 200, {"files": [_mode(file, there) for file in json.loads(body)["files"]]})
    if path.endswith(".git/info/lfs/objects/batch"):
        objects = [_batch(store, asked) for asked in json.loads(body)["objects"]]
        return _send(ask, 200, {"transfer": "basic", "objects": objects})
    if match := re.fullmatch(r"/api/((?:models|datasets)/[^/]+/[^/]+)/commit/[^/]+", path):
        content = store.repositories[match[1]]
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            if line["key"] == "file":
                content[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                content[value["path"]] = store.large[value["oid"]]
        commit = store.commit(match[1])
        return _send(ask, 200, {"commitUrl": f"{store.address}/{match[1]}/commit/{commit}", "commitOid": commit})
    return _send(ask, 404, {"error": path})


def _mode(file: dict[str, Any], there: dict[str, bytes]) -> dict[str, Any]:
    is_large = file["path"].endswith((".safetensors", ".parquet"))
    return {
        "path": file["path"],
        "uploadMode": "lfs" if is_large else "regular",
        "shouldIgnore": False,
        "oid": _blob(there[file["path"]]) if file["path"] in there and not is_large else None,
    }


def _batch(store: HubStore, asked: dict[str, Any]) -> dict[str, Any]:
    upload = {"upload": {"href": f"{store.address}/upload/{asked['oid']}", "header": {}}}
    return asked if asked["oid"] in store.large else asked | {"actions": upload}


def _read(store: HubStore, ask: BaseHTTPRequestHandler) -> None:
    path = ask.path.partition("?")[0]
    if match := re.fullmatch(r"/api/((?:models|datasets)/[^/]+/[^/]+)(?:/(tree|revision)/([^/]+))?", path):
        name, what, _ = match.groups()
        if name not in store.repositories:
            return _send(ask, 404, {}, {"X-Error-Code": "RepoNotFound"})
        content, commit = store.repositories[name], store.commit(name)
        tree = [{"type": "file", "path": k, "size": len(v), "oid": _blob(v)} for k, v in content.items()]
        about = {"id": name.partition("/")[2], "sha": commit, "siblings": [{"rfilename": k} for k in content]}
        return _send(ask, 200, tree if what == "tree" else about)
    for name, content in store.repositories.items():
        commit, prefix = store.commit(name), name.removeprefix("models/")
        if (match := re.fullmatch(rf"/{prefix}/resolve/(?:{commit}|main)/(.+)", path)) and match[1] in content:
            found = content[match[1]]
            return _send(ask, 200, found, {"ETag": f'"{_blob(found)}"', "X-Repo-Commit": commit})
    return _send(ask, 404, {}, {"X-Error-Code": "EntryNotFound"})


def _blob(content: bytes) -> str:
    """As git names a file."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def _send(ask: BaseHTTPRequestHandler, status: int, content: Any, headers: dict[str, str] | None = None) -> None:
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    ask.send_response(status)
    for key, value in {"Content-Type": "application/json", **(headers or {}), "Content-Length": str(len(body))}.items():
        ask.send_header(key, value)
    ask.end_headers()
    if ask.command != "HEAD":
        ask.wfile.write(body)
