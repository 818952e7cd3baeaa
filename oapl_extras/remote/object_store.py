"""Objects below one URL (s3, gs, az, file, or a path): put, create, get, list, delete; the door to obstore.

``create`` writes only where nothing is (S3: If-None-Match, Google: ifGenerationMatch=0, Azure: If-None-Match, a disk: a
hard link). Every write is whole or not there. Credentials come from the environment, or from the machine's role.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from oapl_core.errors import ConfigError, StageFailed
from oapl_core.settings.operation.secrets import below, holds_key

# A start in front of a store that is away should say so in seconds; who can wait asks again (`PartQueue`).
_RETRIES: Any = {"max_retries": 5, "retry_timeout": timedelta(seconds=30)}
_BLOCK_BYTES = 8 * 2**20
_CLASSES = {"s3": "S3Store", "gs": "GCSStore", "az": "AzureStore", "file": "LocalStore"}
_SCHEMES = "give file:///..., a path from /, s3://bucket/..., gs://bucket/... or az://container/..."
_OPTIONS = ("region", "endpoint")
"""Options that may follow the question mark of s3://."""


class StoreRefused(ConfigError):
    """The store knows neither us nor the bucket."""


class Unreachable(StageFailed):
    """The store does not answer, or not now."""


class Version(NamedTuple):
    """Changes whenever the object is written."""

    tag: str | None
    modified: str


class ObjectStore:
    """Store of the objects below one URL."""

    def __init__(self, url: str, folder: str = "") -> None:
        """Parse ``url``, as `mirror` has it, and a folder below it. Asks the store nothing yet.

        Raises:
            ConfigError: it is no URL of a store, or holds credentials.
        """
        import obstore

        self.url = below(url, folder)
        self._obstore = obstore
        self._scheme, self._bucket, self._prefix, self._options = _parsed(self.url)

    @cached_property
    def _store(self) -> Any:
        from obstore import store

        values: dict[str, Any] = dict(self._options)
        if self._scheme == "file":
            return store.LocalStore()
        if values.get("endpoint", "").startswith("http://"):
            values["client_options"] = {"allow_http": True}
        return getattr(store, _CLASSES[self._scheme])(self._bucket, retry_config=_RETRIES, **values)

    def _at(self, name: str) -> str:
        return f"{self._prefix}/{name}".strip("/")

    def create(self, name: str, content: bytes) -> bool:
        """Write an object that is not there; False if it is. Content that is there from us already counts as written.

        Raises:
            Unreachable: the store does not answer; ConfigError: no such bucket, or not with these credentials.
        """
        with self._errors():
            try:
                self._obstore.put(self._store, self._at(name), content, mode="create")
            except self._obstore.exceptions.AlreadyExistsError:
                # an answer that was lost on its way is asked for again, and then our own object is in the way
                return self.get(name) == content
        return True

    def put(self, name: str, content: "bytes | Path") -> None:
        """Write an object, there or not."""
        with self._errors():
            self._obstore.put(self._store, self._at(name), content)

    def get(self, name: str) -> bytes | None:
        """Read the content of an object; None if there is no such object."""
        with self._errors():
            try:
                return bytes(self._obstore.get(self._store, self._at(name)).bytes())
            except FileNotFoundError as error:
                self._refuse_without_bucket(error)
                return None

    def fetch(self, name: str, path: Path) -> bool:
        """Write its content to ``path``, whose folders are made; False if there is none."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with self._errors():
            try:
                stream = self._obstore.get(self._store, self._at(name)).stream(min_chunk_size=_BLOCK_BYTES)
            except FileNotFoundError:
                return False
            with path.open("wb") as file:
                for chunk in stream:
                    file.write(chunk)
                file.flush()
                os.fsync(file.fileno())
        return True

    def size(self, name: str) -> int:
        """Return the bytes of an object that is there."""
        with self._errors():
            return int(self._obstore.head(self._store, self._at(name))["size"])

    def list(self, folder: str) -> dict[str, Version]:
        """List the names of all objects in ``folder`` and below."""
        with self._errors():
            found = self._obstore.list(self._store, self._at(folder)).collect()
        start = len(self._prefix) + 1 if self._prefix else 0
        return {one["path"][start:]: Version(one["e_tag"], str(one["last_modified"])) for one in found}

    def delete(self, names: Sequence[str]) -> None:
        """Delete objects, there or not."""
        # One by one: stores differ in what deleting many at once says of those that are not there.
        with self._errors():
            for name in names:
                try:
                    self._obstore.delete(self._store, self._at(name))
                except FileNotFoundError:
                    continue

    @contextmanager
    def _errors(self) -> Iterator[None]:
        errors = self._obstore.exceptions
        try:
            yield
        except (errors.UnauthenticatedError, errors.PermissionDeniedError) as error:
            raise StoreRefused(f"{self.url}: the store refuses these credentials ({_first(error)})") from None
        except (errors.BaseError, FileNotFoundError) as error:
            self._refuse_without_bucket(error)
            if "169.254.169.254" in str(error) or "/latest/api/token" in str(error):  # asked last, when nothing is set
                raise StoreRefused(
                    f"{self.url}: no credentials; set those of the store in the environment (AWS_ACCESS_KEY_ID and "
                    "AWS_SECRET_ACCESS_KEY, GOOGLE_APPLICATION_CREDENTIALS, AZURE_STORAGE_...), or give the machine "
                    "a role"
                ) from None
            raise Unreachable(f"{self.url}: does not answer ({_first(error)}); mend that and start again") from None

    def _refuse_without_bucket(self, error: Exception) -> None:
        if "NoSuchBucket" in str(error):
            raise StoreRefused(f"{self.url}: there is no such bucket; make it, or look at the URL") from None


def _first(error: Exception) -> str:
    text = str(error).split("Debug source:")[0]
    return " ".join(text.split())[:200]


def _parsed(url: str) -> tuple[str, str, str, dict[str, str]]:
    """Scheme, bucket, path below it without slashes around it, and options of a URL. Raises ConfigError."""
    if not url.isprintable():  # half a character of a shell's other encoding, or a control character
        raise ConfigError(f"`mirror`: {url!r} is not a URL; {_SCHEMES}")
    try:
        parts = urlsplit(url, allow_fragments=False) if "://" in url else urlsplit("file://")._replace(path=url)
        has_key = holds_key(url)
    except ValueError as error:  # urlsplit's, of brackets that no host has
        raise ConfigError(f"`mirror`: {url} is not a URL ({error}); {_SCHEMES}") from None
    if has_key:
        raise ConfigError("`mirror`: holds credentials, which run.json would record; use the environment of the store")
    path = unquote(parts.path) if "://" in url and parts.scheme == "file" else parts.path
    names = [name for name in path.split("/") if name]
    if "://" not in url and not path.startswith("/"):
        raise ConfigError(f"`mirror`: {url} is not a URL; {_SCHEMES}")
    if parts.scheme not in _CLASSES:
        raise ConfigError(f"`mirror`: {url} cannot be opened, {parts.scheme}:// is no store known here; {_SCHEMES}")
    if not (names if parts.scheme == "file" else parts.netloc):
        raise ConfigError(f"`mirror`: {url} names no bucket or folder; {_SCHEMES}")
    if {".", ".."} & set(names) or (parts.scheme == "file" and parts.netloc):
        raise ConfigError(f"`mirror`: {url} is no whole path; {_SCHEMES}")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    if strange := [name for name in options if parts.scheme != "s3" or name not in _OPTIONS]:
        says = "s3:// takes region=... and endpoint=http://HOST:PORT after its question mark, others nothing"
        raise ConfigError(f"`mirror`: {url}: `{strange[0]}` is no option; {says}")
    return parts.scheme, parts.netloc, "/".join(names), options
