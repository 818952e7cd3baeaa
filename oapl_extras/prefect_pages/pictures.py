"""Markdown with its figures in the text itself: Prefect's pages have no folder beside them. Reads the PNGs."""

import base64
import re
from pathlib import Path

_PICTURE = re.compile(r"^(!\[.*\])\(([\w.-]+\.png)\)$", re.MULTILINE)


def with_pictures(text: str, folder: Path) -> str:
    """Put the figures of ``text``, PNGs in ``folder``, into it."""

    def embedded(link: re.Match[str]) -> str:
        path = folder / link[2]
        if not path.is_file():  # a section may be shown without its figures
            return link[0]
        return f"{link[1]}(data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()})"

    return _PICTURE.sub(embedded, text)
