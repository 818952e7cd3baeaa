"""The site: links out of docs/ work on it, what is broken stops its build, and its pages can be read by everybody."""

import json
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

import oapl_core
from docs.site.api_page import api_page
from docs.site.settings_page import search_entries, settings_page
from oapl_core.settings.experiment import Experiment

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("docs/**/*.md"), *ROOT.glob("*.md"), ROOT / "data/README.md"])
FENCED = re.compile(r"^(`{3,})[^\n]*\n.*?^\1$", re.DOTALL | re.MULTILINE)
IMAGE = re.compile(r"!\[([^\]]*)\]\(([^)]+)\)")

MKDOCS = f"""
site_name: small
theme: mkdocs
strict: true
use_directory_urls: false
hooks: [{ROOT}/docs/site/repository.py]
plugins: []
markdown_extensions: [pymdownx.superfences]
validation: {{links: {{not_found: warn, anchors: warn}}}}
"""


def built(folder: Path, **pages: str) -> subprocess.CompletedProcess[str]:
    """A site of the hook alone: `docs/index.md`, `data/README.md` and so on, named with `__` for a slash."""
    for name, text in {"code__tool_py": 'print("it runs")\n', **pages}.items():
        path = folder / name.replace("__", "/").replace("_py", ".py")
        path = path if path.suffix else path.with_suffix(".md")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (folder / "mkdocs.yml").write_text(MKDOCS)
    command = [sys.executable, "-m", "mkdocs", "build"]  # `--quiet` would hide warnings from `strict`
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


def test_links_to_files_outside_of_docs_lead_to_pages(tmp_path: Path) -> None:
    done = built(
        tmp_path,
        docs__index="# Start\n\n[columns](../data/README.md#rows) [tool](../code/tool.py)\n",
        docs__deep__page="# Deep\n\n[columns](../../data/README.md#rows)\n",
        data__README="# Columns\n\n## Rows\n\n[deep](../docs/deep/page.md), [rules](../RULES.md)\n",
        RULES="# Rules\n\n[start](docs/index.md)\n",
    )
    assert done.returncode == 0, done.stderr
    pages = {
        path.relative_to(tmp_path / "site").as_posix(): path.read_text() for path in tmp_path.glob("site/**/*.html")
    }
    assert 'href="repository/data/index.html#rows"' in pages["index.html"]
    assert 'href="repository/code/tool.py.html"' in pages["index.html"]
    assert 'href="../repository/data/index.html#rows"' in pages["deep/page.html"]
    assert 'href="../../deep/page.html"' in pages["repository/data/index.html"]
    assert 'href="../index.html"' in pages["repository/RULES.html"], "what is linked to from outside is there, too"
    assert "it runs" in pages["repository/code/tool.py.html"]


@pytest.mark.parametrize(
    ("link", "told"),
    [
        ("../data/GONE.md", "'../data/GONE.md', but the target is not found"),
        ("../data/README.md#gone", "'../repository/data/README.md#gone', but the doc"),
        ("gone.md", "'gone.md', but the target"),
    ],
)
def test_a_broken_link_stops_the_build(link: str, told: str, tmp_path: Path) -> None:
    done = built(tmp_path, docs__index=f"# Start\n\n[it]({link})\n", data__README="# Columns\n")
    assert done.returncode == 1
    assert "index.md" in done.stderr


def test_blocks_belong_to_their_item_of_a_list(tmp_path: Path) -> None:
    items = "- one:\n\n  ```text\n  a = 1\n  ```\n\n- two\n  goes on\n\n      code\n\n  more\n- three\n"
    done = built(tmp_path, docs__index=f"# Start\n\n{items}\n```text\n- x\n  y\n```\n")
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "site/index.html").read_text()
    _, _, rest = page.partition("<ul>\n<li>")
    assert "a = 1" in rest.partition("</ul>")[0]
    assert re.search(r"<pre><code[^>]*>code\n", page)
    assert rest.partition("</ul>")[0].count("<li>") == 2, "and the first, which was cut off above"
    assert "- x\n  y" in page


def test_every_setting_is_on_the_page_with_its_default_and_its_table() -> None:
    page = settings_page()
    for key in Experiment.model_fields:
        assert re.search(rf"^\| `{key}`({{#{key}}})? \|", page, re.MULTILINE)
    assert "| `group_size`{#sampling.group_size} | integer, at least 2 | `8` | G, answers per problem (paper, " in page
    assert "| `model`{#model} | path | unset |" in page
    assert (
        "| `adam_betas`{#training.adam_betas} | 2 times number, at least 0.0 and at most 1.0 | `[0.9, 0.95]` |" in page
    )
    anchors = re.findall(r"\{#([^}]+)\}", page)
    assert len(anchors) == len(set(anchors))
    assert set(re.findall(r"\[table\]\(#([^)]+)\)", page)) - {"objectives"} <= set(anchors)
    assert {"rounds.replay", "reward.judge.prompt", "objective.grpo", "comparison-arms"} <= set(anchors)


def test_the_search_knows_every_setting_in_one_word_and_in_several() -> None:
    page, entries = settings_page(), search_entries()
    found = {one["location"].removeprefix("settings.html#"): one for one in entries}
    assert len(found) == len(entries) > 200
    assert set(found) <= set(re.findall(r"\{#([^}]+)\}", page)), "each leads to its row"
    rate = found["training.learning_rate"]
    assert (rate["title"], rate["text"]) == ("[training] learning_rate learning rate", "Peak learning rate.")
    assert found["objective.oapl.regression_temperature"]["title"].startswith("[objective.oapl] regression_temperature")
    assert found["seed"]["title"] == "seed"
    assert {"rounds.rows.max_tokens", "sampling.max_tokens", "rounds.epochs", "comparison-seeds"} <= set(found)


def test_a_public_name_must_be_on_the_librarys_page(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "::: oapl_core.verdicts.verifier.Verifier\n" in api_page()
    monkeypatch.setattr(oapl_core, "__all__", [*oapl_core.__all__, "Novelty"])
    with pytest.raises(ValueError, match="Novelty"):
        api_page()


def faults(text: str) -> list[str]:
    """What a listener would miss: one title, no level of headings skipped, pictures said in words."""
    text = FENCED.sub("", text)
    levels = [len(marks) for marks in re.findall(r"^(#+) \S", text, re.MULTILINE)]
    return [
        *(["not one title, at the top"] if levels.count(1) != 1 or levels[0] != 1 else []),
        *(f"level {after} after {before}" for before, after in pairwise(levels) if after > before + 1),
        *(f"{target} is not said in words" for words, target in IMAGE.findall(text) if len(words.split()) < 3),
    ]


def test_every_page_can_be_read_aloud() -> None:
    assert len(faults("## A\n\n#### B\n\n![picture](p.png)\n")) == 3
    found = [f"{path.relative_to(ROOT)}: {fault}" for path in PAGES for fault in faults(path.read_text("utf-8"))]
    assert not found


def test_pictures_that_are_drawn_say_what_they_show() -> None:
    for picture in ROOT.glob("docs/assets/*.svg"):
        text = picture.read_text()
        assert picture.name == "favicon.svg" or ("<title" in text and "<desc" in text)


def test_the_sites_configuration_fetches_nothing_from_elsewhere() -> None:
    text = (ROOT / "mkdocs.yml").read_text()
    assert "font: false" in text
    assert "http" not in json.dumps(re.findall(r"^(?!#)(.*)$", text, re.MULTILINE))
