"""Headless Chromium, and a server whose pages tell a test what they found there."""

import json
import shutil
import subprocess
from functools import partial
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from queue import Queue
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome") or "chromium"


class Handler(SimpleHTTPRequestHandler):
    """Serves a folder, and takes what its pages found; null ends it."""

    found: Queue[dict[str, Any] | None] = Queue()

    def do_POST(self) -> None:
        self.found.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None:
        pass


def chromium(folder: Path, *arguments: str) -> list[str]:
    """The command of a browser whose profile is ``folder``."""
    fixed = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={folder}"]
    return [CHROMIUM, *fixed, *arguments]


def told_by(address: str, folder: Path) -> list[dict[str, Any]]:
    """What the page at ``address`` posted to `/found` until it posted null."""
    command = chromium(folder / "profile", "--remote-debugging-port=0", address)  # a port keeps it open
    browser = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        return list(iter(partial(Handler.found.get, timeout=300), None))
    finally:
        browser.terminate()
        browser.wait()
