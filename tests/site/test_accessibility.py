"""Every page of the built site in headless Chromium: axe-core finds nothing, no page is wider than its window.

`pytest -m browser tests/site`. OAPL_SCREENSHOTS=DIR keeps pictures of a few pages there.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from queue import Queue
from threading import Thread
from typing import Any

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.timeout(900)]
ROOT = Path(__file__).resolve().parents[2]
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome") or "chromium"
WIDTHS = {"wide": 1280, "narrow": 390}
SHOWN = ("index", "tutorial", "settings", "api", "operations", "benchmarks/claims")

# Each page in a frame of the given width, light when wide and dark when narrow, with axe-core in it.
HARNESS = """
<!doctype html><title>checks</title><iframe id="frame" style="border:0;height:900px"></iframe>
<script>
const views = %s
const frame = document.getElementById("frame")
async function look({page, width, scheme}) {
  frame.style.width = width + "px"
  await new Promise(done => { frame.onload = done; frame.src = page })
  const inner = frame.contentWindow, body = inner.document.body
  body.setAttribute("data-md-color-scheme", scheme)
  body.insertAdjacentHTML("beforeend", "<style>*, ::before, ::after {transition: none !important}</style>")
  await new Promise(done => {
    const script = inner.document.createElement("script")
    script.src = "/axe.min.js"; script.onload = done; body.append(script)
  })
  await new Promise(done => setTimeout(done, 300)) // the page mends what its theme added late
  const {violations} = await inner.axe.run(inner.document, {
    resultTypes: ["violations"], runOnly: ["wcag2a", "wcag2aa", "wcag21aa", "best-practice"]})
  const told = (one, node) => one.id + ": " + node.target + " " + node.html.slice(0, 120)
  const found = violations.flatMap(one => one.nodes.slice(0, 5).map(node => told(one, node)))
  const wider = inner.document.documentElement.scrollWidth - width
  if (wider > 0) found.push("wider than its window by " + wider)
  return {page, width, scheme, found}
}
(async () => {
  for (const view of views) await fetch("/found", {method: "POST", body: JSON.stringify(await look(view))})
  await fetch("/found", {method: "POST", body: "null"})
})().catch(error => fetch("/found", {method: "POST", body: JSON.stringify({page: "harness", found: [String(error)]})}))
</script>
"""


class Handler(SimpleHTTPRequestHandler):
    """Serves the site and the harness, and takes what the harness found."""

    found: Queue[dict[str, Any] | None]

    def do_POST(self) -> None:
        self.found.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.fixture(scope="module")
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


def chromium(folder: Path, *arguments: str) -> list[str]:
    fixed = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={folder}"]
    return [CHROMIUM, *fixed, *arguments]


def test_every_page_can_be_read_by_everybody(site: Path, server: ThreadingHTTPServer, tmp_path: Path) -> None:
    pages = sorted(f"/{path.relative_to(site).as_posix()}" for path in site.glob("**/*.html"))
    light = [{"page": page, "width": WIDTHS["wide"], "scheme": "default"} for page in pages]
    dark = [{"page": f"/{page}.html", "width": WIDTHS["narrow"], "scheme": "slate"} for page in SHOWN]
    views = [*dark, *light]
    (site / "checks.html").write_text(HARNESS % json.dumps(views))
    address = f"http://127.0.0.1:{server.server_port}/checks.html"
    command = chromium(tmp_path / "profile", "--remote-debugging-port=0", address)  # a port keeps it open
    browser = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        found = list(iter(partial(Handler.found.get, timeout=300), None))
    finally:
        browser.terminate()
        browser.wait()
    assert len(found) == len(views) > 50
    told = [f"{one['page']} {one['scheme']}: {what}" for one in found for what in one["found"]]
    assert not told, "\n".join(told)


def test_nothing_comes_from_elsewhere(site: Path) -> None:
    """Neither scripts nor styles, fonts or pictures of a page have an address of another host."""
    from bs4 import BeautifulSoup

    for path in site.glob("**/*.html"):
        page = BeautifulSoup(path.read_text("utf-8"), "html.parser")
        loaded = [tag.get("src") or tag.get("href") for tag in page.select("script[src], img, link[href], iframe")]
        assert not [address for address in loaded if str(address).startswith(("http:", "https:", "//"))], path


@pytest.mark.parametrize("page", SHOWN)
@pytest.mark.parametrize("width", WIDTHS)
def test_a_picture_of_it(page: str, width: str, server: ThreadingHTTPServer, tmp_path: Path) -> None:
    folder = Path(os.environ.get("OAPL_SCREENSHOTS", tmp_path))
    picture = folder / f"{page.replace('/', '_')}_{width}.png"
    size = f"--window-size={WIDTHS[width]},1400"
    url = f"http://127.0.0.1:{server.server_port}/{page}.html"
    subprocess.run(
        chromium(tmp_path / "profile", size, f"--screenshot={picture}", url),
        check=True,
        capture_output=True,
        timeout=120,
    )
    assert picture.stat().st_size > 20_000
