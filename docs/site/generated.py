"""Pages and a footer that are made when the site is built, so that they cannot fall behind: a hook of MkDocs."""

import json
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from docs.site.api_page import api_page
from docs.site.columns_page import columns_page
from docs.site.commands_page import commands_page
from docs.site.settings_page import search_entries, settings_page
from oapl_core import __version__


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Say on every page of which version it is."""
    config.copyright = f"OAPL {__version__}, Apache License 2.0"
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the settings, the columns of tables and the library's names."""
    files.append(File.generated(config, "settings.md", content=settings_page()))
    files.append(File.generated(config, "columns.md", content=columns_page()))
    files.append(File.generated(config, "api.md", content=api_page()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Add help and options to the examples of the command line."""
    return commands_page(markdown) if page.file.src_uri == "cli.md" else markdown


def on_post_build(config: MkDocsConfig) -> None:
    """Let the search find each setting by its name, which else is one word of a long table."""
    path = Path(config.site_dir) / "search" / "search_index.json"
    index = json.loads(path.read_text("utf-8"))
    index["docs"] += search_entries()
    path.write_text(json.dumps(index, ensure_ascii=False, separators=(",", ":")), encoding="utf-8")
