"""One version: `oapl_core.__version__`, which packaging reads; CHANGELOG.md and CITATION.cff name the same."""

import re
import tomllib
from datetime import date

import yaml

from oapl_core import __version__
from tests.architecture.sources import ROOT

SECTIONS = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
RELEASE = re.compile(r"^## \[(\d+\.\d+\.\d+)\] - (\d{4}-\d\d-\d\d)$", re.MULTILINE)


def test_packaging_reads_the_version_from_the_core() -> None:
    content = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "version" not in content["project"]
    assert content["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "oapl_core.__version__"}


def test_the_changelog_has_what_is_unreleased_first_and_then_this_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    assert text.index("\n## [Unreleased]\n") < text.index("\n## [0")
    assert RELEASE.findall(text)[0][0] == __version__
    assert set(re.findall(r"^### (.*)$", text, re.MULTILINE)) <= SECTIONS


def test_the_citation_is_of_this_version_and_names_the_paper() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation.keys() >= {"cff-version", "message", "title", "authors", "license", "references"}
    assert (citation["cff-version"], citation["type"], citation["version"]) == ("1.2.0", "software", __version__)
    released = dict(RELEASE.findall((ROOT / "CHANGELOG.md").read_text()))
    assert date.fromisoformat(citation["date-released"]) == date.fromisoformat(released[__version__])
    assert all(person.keys() == {"name"} for person in citation["authors"])
    assert "2602.19362" in citation["references"][0]["url"]


def test_the_wheels_that_pages_install_are_of_this_version() -> None:
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
    wheels = [name for page in pages for name in re.findall(r"\boapl-[0-9][\w.]*-py3", page.read_text())]
    assert {*wheels} == {f"oapl-{__version__}-py3"}
