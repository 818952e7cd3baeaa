"""What a reader does with the site and a report, in headless Chromium: search, copy commands, read wide tables."""

import json
import shutil
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from oapl_core import __version__
from oapl_core.changing.forking import with_overrides
from oapl_core.reports.write import write
from oapl_core.run_folder.ledger import SettingsEntry
from oapl_core.run_folder.run import Run
from oapl_core.settings.experiment_file import write_settings
from tests.site.browser import told_by
from tests.synthetic_run import Sizes, write_synthetic_run

pytestmark = [pytest.mark.browser, pytest.mark.timeout(900)]

# A page in a frame of the given width, and what a function says of its window.
FRAME = """
<!doctype html><title>frame</title><iframe id="frame" style="border:0;height:900px"></iframe>
<script>
const views = %s, frame = document.getElementById("frame")
const wait = milliseconds => new Promise(done => setTimeout(done, milliseconds))
const until = async condition => { for (let i = 0; i < 200 && !condition(); i++) await wait(100) }
const say = %s
;(async () => {
  for (const view of views) {
    frame.style.width = view.width + "px"
    await new Promise(done => { frame.onload = done; frame.src = view.page })
    await fetch("/found", {method: "POST", body: JSON.stringify(await say(frame.contentWindow, view))})
  }
})().catch(error => fetch("/found", {method: "POST", body: JSON.stringify({error: String(error)})}))
  .finally(() => fetch("/found", {method: "POST", body: "null"}))
</script>
"""


def said(site: Path, server: ThreadingHTTPServer, folder: Path, views: list[Any], script: str) -> list[Any]:
    """What ``script`` says of each view."""
    (site / "frame.html").write_text(FRAME % (json.dumps(views), script))
    return told_by(f"http://127.0.0.1:{server.server_port}/frame.html", folder)


SEARCH = """async (inner, view) => {
  const box = inner.document.querySelector("input[name=query]")
  const results = () => [...inner.document.querySelectorAll(".md-search-result__item > .md-search-result__link")]
  box.focus()
  await wait(1500) // the index is read when somebody looks for the first time
  box.value = view.words
  box.dispatchEvent(new KeyboardEvent("keyup", {bubbles: true}))
  await until(() => results().length)
  return {words: view.words, found: results().map(link => link.pathname)}
}"""


def test_search_for_a_setting_leads_to_the_settings(site: Path, server: ThreadingHTTPServer, tmp_path: Path) -> None:
    words = ["learning_rate", "regression_temperature", "max_tokens", "learning rate", "group_size", "batch_size"]
    views = [{"page": "/index.html", "width": 1280, "words": one} for one in words]
    found = {one["words"]: one["found"] for one in said(site, server, tmp_path, views, SEARCH)}
    assert {one: pages[:1] for one, pages in found.items()} == {one: ["/settings.html"] for one in words}


def test_search_for_other_words_does_not(site: Path, server: ThreadingHTTPServer, tmp_path: Path) -> None:
    words = ["oapl fork", "Slurm", "pass rate", "recovering", "namespaces"]
    views = [{"page": "/index.html", "width": 1280, "words": one} for one in words]
    first = [one["found"][0] for one in said(site, server, tmp_path, views, SEARCH)]
    assert "/settings.html" not in first
    assert any(page.startswith("/operations/") for page in first)


COPY = """async (inner, view) => {
  const copied = []
  Object.defineProperty(inner.navigator, "clipboard", {value: {writeText: async text => copied.push(text)}})
  inner.document.execCommand = () => {
    copied.push(inner.getSelection().toString() || inner.document.activeElement.value)
    return true
  }
  await until(() => inner.document.querySelector("[data-clipboard-target]"))
  for (const button of inner.document.querySelectorAll("[data-clipboard-target]")) { button.click(); await wait(20) }
  return {page: view.page, copied}
}"""


def test_every_page_says_of_which_version_it_is(site: Path) -> None:
    for page in ("index", "cli", "benchmarks/claims", "repository/CHANGELOG"):
        assert f"OAPL {__version__}, Apache License 2.0" in (site / f"{page}.html").read_text("utf-8")


def test_what_is_copied_from_a_terminal_are_the_commands(
    site: Path, server: ThreadingHTTPServer, tmp_path: Path
) -> None:
    views = [{"page": f"/{page}.html", "width": 1280} for page in ("tutorial", "languages")]
    tutorial, languages = said(site, server, tmp_path, views, COPY)
    assert ".venv/bin/oapl run deployments/experiments/demo.toml" in tutorial["copied"]
    both = next(text for text in tutorial["copied"] if "oapl status" in text).split("\n")
    assert [line.split()[1] for line in both] == ["status", "rollouts"], "two commands, and nothing that they printed"
    assert "oapl verify greatest.pl --tests greatest.json\noapl doctor" in languages["copied"]
    copied = [*tutorial["copied"], *languages["copied"]]
    assert not [text for text in copied if text.startswith("$ ") or "12 of 12 steps" in text]
    assert any(text.startswith("import polars as pl\n") for text in copied), "other blocks are copied as they are"


TABLES = """async (inner, view) => {
  await wait(300)
  const boxes = [...inner.document.querySelectorAll(".scroll")]
  const named = boxes.find(box => box.getAttribute("aria-label").startsWith("Pass rates of held-out"))
  const edge = named.getBoundingClientRect().right
  const heads = [...named.querySelectorAll("th")].filter(head => head.getBoundingClientRect().right <= edge + 1)
  const {scrollWidth} = inner.document.documentElement
  return {width: view.width, shown: heads.map(head => head.textContent), wider: scrollWidth - view.width}
}"""


def test_no_column_of_the_pass_rates_is_cut_on_a_laptop_nor_the_interval_on_a_telephone(
    site: Path, server: ThreadingHTTPServer, tmp_path: Path
) -> None:
    made = write_synthetic_run(tmp_path / "runs", Sizes(samples=16))
    rewarded = with_overrides(made.config, ["reward={right_from = 0.5}"], "the test")
    made.ledger.append(SettingsEntry.of(rewarded.model_dump(mode="json")))
    write_settings(made.root, rewarded, Path.cwd())
    write(Run.open(made.root))
    shutil.copytree(made.report, site / "report-of-a-run", dirs_exist_ok=True)
    views = [{"page": "/report-of-a-run/index.html", "width": width} for width in (1280, 400)]
    laptop, telephone = said(site, server, tmp_path, views, TABLES)
    assert laptop["wider"] <= 0 and telephone["wider"] <= 0
    assert laptop["shown"][-3:] == ["problems", "truncated", "verifier errors"]
    assert "mean reward" in laptop["shown"]
    assert telephone["shown"][:3] == ["checkpoint", "pass@1", "95 % interval"]
