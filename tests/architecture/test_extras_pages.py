"""Each optional feature, a folder of oapl_extras, has its page in docs/extras and its tests in tests/extras."""

import re

from tests.architecture.sources import ROOT, text

TESTED_ELSEWHERE = {"nodes": "tests/core/training/test_nodes.py"}
"""Tests that lie with the trainer's own: they start its ranks."""


def features() -> list[str]:
    return sorted(path.parent.name for path in (ROOT / "oapl_extras").glob("*/__init__.py"))


def test_each_has_its_page_and_each_page_its_folder() -> None:
    pages = {path.stem for path in (ROOT / "docs" / "extras").glob("*.md")}
    assert sorted(pages) == features()
    assert "stop" in pages


def test_each_has_its_tests() -> None:
    tested = {path.parent.name for path in (ROOT / "tests" / "extras").glob("*/test_*.py")}
    for feature in features():
        elsewhere = TESTED_ELSEWHERE.get(feature)
        assert (feature in tested) is (elsewhere is None), feature
        assert elsewhere is None or (ROOT / elsewhere).is_file()


def test_each_page_says_what_it_is_for_and_is_in_the_menu() -> None:
    menu = re.findall(r"extras/(\w+)\.md", text(ROOT / "mkdocs.yml"))
    assert sorted(menu) == features()
    for feature in features():
        title, blank, first, *_ = text(ROOT / "docs" / "extras" / f"{feature}.md").splitlines()
        assert title.startswith("# ") and not blank, feature
        assert re.match(r"[\w`\[]", first), f"{feature}: a sentence says what it is for"
