"""Every page of the built site in headless Chromium: axe-core finds nothing, no page is wider than its window.

`pytest -m browser tests/site`. OAPL_SCREENSHOTS=DIR keeps pictures of a few pages there.
"""

import json
import os
import subprocess
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.site.browser import chromium, told_by

pytestmark = [pytest.mark.browser, pytest.mark.timeout(900)]
WIDTHS = {"wide": 1280, "narrow": 390}
SHOWN = ("index", "tutorial", "settings", "api", "operations/server", "benchmarks/claims")

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


def test_every_page_can_be_read_by_everybody(site: Path, server: ThreadingHTTPServer, tmp_path: Path) -> None:
    pages = sorted(f"/{path.relative_to(site).as_posix()}" for path in site.glob("**/*.html"))
    light = [{"page": page, "width": WIDTHS["wide"], "scheme": "default"} for page in pages]
    dark = [{"page": f"/{page}.html", "width": WIDTHS["narrow"], "scheme": "slate"} for page in SHOWN]
    views = [*dark, *light]
    (site / "checks.html").write_text(HARNESS % json.dumps(views))
    address = f"http://127.0.0.1:{server.server_port}/checks.html"
    found = told_by(address, tmp_path)
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
