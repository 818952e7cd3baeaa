"""Pages that are made when the site is built, so that they cannot fall behind: a hook of MkDocs."""

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from docs.site.api_page import api_page
from docs.site.settings_page import settings_page


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the settings and the library's names."""
    files.append(File.generated(config, "settings.md", content=settings_page()))
    files.append(File.generated(config, "api.md", content=api_page()))
    return files
