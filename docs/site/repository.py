"""Makes pages that are written for the repository work on the site: a hook of MkDocs.

A page of docs/ may link to any file of the repository, as it is read there. A Markdown file that is linked to becomes a
page under repository/, another file a page that shows its text, and links between all of them are rewritten. What
belongs to an item of a list is indented by two columns, as in CommonMark; Python-Markdown wants four.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

LINK = re.compile(r"(?<=\]\()([^)\s#:]+)(?=[)#])")
"""The path of a link in Markdown, without its anchor; addresses have a colon."""
MADE_OF = {"data/columns.toml": "columns.md"}
"""Pages that another hook makes of a file: links to the file lead there."""
LANGUAGES = {".py": "python", ".toml": "toml", ".sh": "bash", ".json": "json"}


def checkout(config: MkDocsConfig) -> Path:
    """The folder of mkdocs.yml."""
    return Path(config.docs_dir).parent


def linked(root: Path, page: Path, text: str) -> Iterator[tuple[str, Path]]:
    """Each link of ``page`` to a file of the checkout ``root``: as it is written, and the file relative to ``root``."""
    for written in LINK.findall(text):
        target = Path(os.path.normpath(page.parent / written))
        if target.is_file() and target.is_relative_to(root):
            yield written, target.relative_to(root)


def place(target: Path) -> str:
    """Where a file of the repository lies on the site."""
    if target.as_posix() in MADE_OF:
        return MADE_OF[target.as_posix()]
    if target.parts[0] == "docs":
        # the page of a notebook, instead of its source
        page = target.with_suffix(".md") if target.suffix == ".py" else target
        return page.relative_to("docs").as_posix()
    return f"repository/{target.as_posix()}" + ("" if target.suffix == ".md" else ".md")


def shown(root: Path, target: Path) -> str:
    """The page of a file that is not Markdown."""
    text = (root / target).read_text("utf-8")
    # more backticks than any line of the file has, so that none of its own ends the block
    fence = "`" * (3 + max(map(len, re.findall("`+", text)), default=0))
    return f"# {target.as_posix()}\n\n{fence}{LANGUAGES.get(target.suffix, 'text')}\n{text}{fence}\n"


def with_wide_lists(markdown: str) -> str:
    """The same with what belongs to an item of a list indented by four columns instead of two."""
    lines = [""]
    in_item = in_block = has_blocks = False
    for line in markdown.split("\n"):
        in_block ^= line.startswith("```")  # a block of code may have hyphens of its own
        if line and not line.startswith("  "):
            begins = line.startswith("- ") and not in_block
            if begins and has_blocks and lines[-1]:
                lines.append("")  # else the item is taken for more of the paragraph above it
            in_item, has_blocks = begins, False
        has_blocks |= in_item and not line
        lines.append(f"  {line}" if in_item and line.startswith("  ") else line)
    return "\n".join(lines[1:])


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what pages link to outside of docs/, and what those link to in turn."""
    root = checkout(config)
    waiting = [(root / "docs" / file.src_uri, file.content_string) for file in files.documentation_pages()]
    while waiting:
        for _, target in linked(root, *waiting.pop()):
            if target.parts[0] == "docs" or place(target) in files.src_uris:
                continue
            if target.suffix == ".md":
                files.append(File.generated(config, place(target), abs_src_path=str(root / target)))
                waiting.append((root / target, (root / target).read_text("utf-8")))
            else:
                listed = InclusionLevel.NOT_IN_NAV  # only pages must be in the navigation
                files.append(File.generated(config, place(target), content=shown(root, target), inclusion=listed))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite links that leave docs/, or are in a page that lies outside of it, and widen lists."""
    # what another hook made is read as if it lay in docs/
    source = page.file.abs_src_path or Path(config.docs_dir) / page.file.src_uri
    home = PurePosixPath(page.file.src_uri).parent
    moved = {
        written: Path(os.path.relpath(place(target), home)).as_posix()
        for written, target in linked(checkout(config), Path(source), markdown)
    }
    return with_wide_lists(LINK.sub(lambda link: moved.get(link[1], link[1]), markdown))
