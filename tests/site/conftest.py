"""The built site, and a server of it, for tests with a browser."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from http.server import ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from queue import Queue
from threading import Thread

import pytest

from tests.site.browser import Handler

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    spec = find_spec("axe_core_python")
    assert spec is not None
    assert spec.origin is not None
    shutil.copy(Path(spec.origin).with_name("axe.min.js"), folder)
    return folder


@pytest.fixture(scope="module")
def server(site: Path) -> Iterator[ThreadingHTTPServer]:
    Handler.found = Queue()
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(site))) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()
