"""Keys do not belong into settings: run.json records them, `--dry-run` prints them, a mirror and a push carry them on.

URLs are refused with a key in them, and where a setting names a variable of the environment, a key in its place.
"""

import re
from typing import Annotated
from urllib.parse import parse_qsl, urlsplit

from pydantic import AfterValidator

_INSTEAD = "which run.json would record; put it into the environment, where"
_WORDS = "secret|access_?key|session_?token|password|passwd|pwd|api_?key|auth|credential|sas|sig|signature|token|key"
_SECRET = re.compile(rf"(?:{_WORDS})(?:_?(?:id|key|token))?", re.IGNORECASE)
_VALUE = re.compile(rf"(?<=[?&])((?:[^=&\s]*-)?{_SECRET.pattern})=[^&\s'\"]*", re.IGNORECASE)
_USER = re.compile(r"(?<=://)[^/@\s]+@")


def holds_key(url: str) -> bool:
    """Return whether a URL has a user, who may be a key, or a query with one."""
    parts = urlsplit(url)
    if parts.username or parts.password:
        return True
    return any(_SECRET.fullmatch(name.split("-")[-1]) for name, _ in parse_qsl(parts.query, keep_blank_values=True))


def masked(text: str) -> str:
    """Replace everything in the URLs of ``text`` that may be a key by ``***``."""
    return _VALUE.sub(r"\1=***", _USER.sub("***@", text))


def _url(url: str) -> str:
    if holds_key(url):
        raise ValueError(f"{masked(url)} holds a key, {_INSTEAD} its library looks for it")
    return url


def _variable(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise ValueError(f"is the name of a variable; this looks like a key, {_INSTEAD} that variable is set")
    return name


KeylessUrl = Annotated[str, AfterValidator(_url)]
"""A URL without a key in it."""
VariableName = Annotated[str, AfterValidator(_variable)]
"""A variable of the environment that holds a key."""


def below(url: str, folder: str) -> str:
    """Return the URL of a folder below ``url``; what follows its question mark stays."""
    place, mark, options = url.partition("?") if "://" in url else (url, "", "")
    return f"{place.rstrip('/')}/{folder}".rstrip("/") + mark + options if folder else url
